package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/terminal"
	"github.com/postern-gateway/postern/internal/verify"
)

// verifyFlags are the flags of `postern verify`.
type verifyFlags struct {
	sample     int64
	maxItems   int
	wait       time.Duration
	signatures bool
	spools     []string
}

func newVerifyCommand(c *cli) *cobra.Command {
	v := verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify the integrity of all stored data",
		Long: `Verify the stored data in one snapshot of the database, while everything runs: each key
has its event, or retention has dropped its day; each event has its key, and an outcome or pending
work; bodies match their fingerprints; each object, deleted ones included, is the result of its
retained object and its events; no effect was planned twice or is in a state that no process can
leave. Nothing is written. Unfinished work is shown with its age, and is a violation only beyond
--wait.

Violations are listed with their repair, --most of each kind, and make the exit status 1. The
configuration of sources is from --config FILE, as processors have it. For sources that are not in
it, only keys, events and outcomes are checked, and the report says so. With --signatures the
secrets must be in it too.

The reports of gateways about their spools are included. A delivery in a spool waits since it was
acknowledged or, if its gateway did not report that time, since the spool was last empty. It is a
violation beyond --wait. A note names spools without a report for ` + redaction.SpoolSilentAfter.String() + `.
Deliveries in spools on this machine are searched in the log: those that are not there yet are waiting, and are a
violation beyond --wait. A damaged file is a violation until it is removed, and so is a quarantined delivery that is not
in the log. The folder is only read, and its gateway may run meanwhile. The database knows the spools of gateways that
run or crashed. The spool in the configuration of --config is checked too. --spool DIR names others and may be repeated:
those of stopped gateways and of other machines.

The snapshot is open until the end: meanwhile PostgreSQL cannot remove dead rows, and retention cannot drop a day.`,
		Example: `  postern verify
  postern verify --sample 10000 -o json
  postern verify --signatures --config /etc/postern/gateway.yaml
  postern verify --spool /var/lib/postern/spool`,
		Args: wantArgs(),
	}
	cmd.Flags().Int64Var(&v.sample, "sample", 0,
		"check about this many objects and bodies, chosen at random (default all)")
	cmd.Flags().IntVar(&v.maxItems, "most", verify.DefaultMaxItems,
		"list at most this many violations of a kind; all are counted")
	cmd.Flags().DurationVar(&v.wait, "wait", verify.DefaultMaxWait,
		"maximum time that something may wait; 0s: no limit")
	cmd.Flags().BoolVar(&v.signatures, "signatures", false,
		"verify the signatures of stored deliveries again, as of their receipt")
	cmd.Flags().StringArrayVar(&v.spools, "spool", nil, "also check this `folder` of a spool, such as that of a "+
		"stopped gateway; may be given several times")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if v.sample < 0 || v.maxItems < 0 || v.wait < 0 {
			return usagef("--sample, --most and --wait are 0 or more")
		}
		return v.run(cmd, c)
	}
	return cmd
}

func (v *verifyFlags) run(cmd *cobra.Command, c *cli) error {
	ctx, errs := cmd.Context(), cmd.ErrOrStderr()
	pool, err := c.connectAs(ctx, errs, operatorRole, verify.Connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	o, err := v.options(ctx, c, pool, errs)
	if err != nil {
		return err
	}
	update, end := newVerifyProgress(errs)
	o.Progress = update
	r, err := verify.Verify(ctx, o)
	if end(); err != nil {
		return err
	}
	return printVerifyReport(cmd.OutOrStdout(), c, r)
}

func (v *verifyFlags) options(ctx context.Context, c *cli, pool *pgxpool.Pool, errs io.Writer) (o verify.Options,
	err error) {
	load := config.LoadSources
	if v.signatures {
		load = config.LoadDev
	}
	endpoints, err := c.endpoints(load)
	// the report names the sources that are not checked
	if err != nil && (v.signatures || !errors.Is(err, errNoSources)) {
		return o, err
	}
	known, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return o, err
	}
	spools, err := v.spoolFolders(ctx, c, pool, errs)
	if err != nil {
		return o, err
	}
	return verify.Options{Pool: pool, Known: known, Sources: admin.ConfiguredSources(endpoints, known),
		Sample:     v.sample,
		Signatures: v.signatures, MaxItems: v.maxItems, MaxWait: v.wait, Spools: spools}, nil
}

// spoolFolders returns the folders that the command names, the one of the configuration, and those
// on this machine that the database knows. A gateway that stopped normally has removed its spool
// from the database.
func (v *verifyFlags) spoolFolders(ctx context.Context, c *cli, pool *pgxpool.Pool, errs io.Writer) ([]string, error) {
	local, err := redaction.LocalSpools(ctx, pool)
	if err != nil {
		return nil, err
	}
	cfg, err := config.LoadWithInstance(c.config)
	if err != nil {
		return nil, err
	}
	if dir := cfg.Ingest.Spool.Dir; dir != "" {
		if name, err := spool.NameOfFolder(dir); name != "" || err != nil { // otherwise no gateway has used it
			local = append(local, redaction.LocalSpool{Name: name, Dir: dir, Err: err})
		}
	}
	seen := map[string]bool{}
	for _, dir := range v.spools {
		name, _ := spool.NameOfFolder(dir) // verify reports an error of the folder
		seen[name] = true
	}
	folders := v.spools
	for _, s := range local {
		switch {
		case s.Err != nil:
			fmt.Fprintf(errs, "spool %s was not checked: %v; run this command with the account of its gateway\n",
				escapeControl(cmp.Or(s.Name, s.Dir)), s.Err)
		case !seen[s.Name]:
			folders = append(folders, s.Dir)
		}
		seen[s.Name] = true
	}
	return folders, nil
}

// newVerifyProgress returns functions that show on a terminal how much is checked, and end that.
func newVerifyProgress(errs io.Writer) (update func(what string, done, all int64), end func()) {
	screen, ok := errs.(*terminal.Screen)
	if !ok {
		return nil, func() {}
	}
	var mu sync.Mutex
	var printedAt time.Time
	return func(what string, done, all int64) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(printedAt) < 200*time.Millisecond {
			return
		}
		printedAt = time.Now()
		const width = 30
		full := int(width * done / max(all, 1))
		_ = screen.Line(fmt.Sprintf("[%s%s] %d of about %d %s", strings.Repeat("#", full),
			strings.Repeat(".", width-full), done, all, what))
	}, func() { _ = screen.Line("") }
}

// printVerifyReport prints a report and returns an error if there are violations.
func printVerifyReport(out io.Writer, c *cli, r *verify.Report) error {
	print := printVerifyText
	if c.output == "json" {
		print = func(out io.Writer, r *verify.Report) error { return printJSON(out, r) }
	}
	if err := print(out, r); err != nil {
		return err
	}
	if n := r.Violations(); n > 0 {
		return fmt.Errorf("%s of %s", countOf(int(n), "violation"), countOf(len(r.Findings), "kind"))
	}
	return nil
}

func printVerifyText(out io.Writer, r *verify.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "as of\t%s\n", r.At)
	for _, what := range []string{"keys", "events", "outcomes", "bodies", "signatures", "objects", "effects",
		"spooled"} {
		if n, ok := r.Checked[what]; ok {
			fmt.Fprintf(w, "%s\t%d\n", what, n)
		}
	}
	for i := range r.Spools {
		s := &r.Spools[i]
		fmt.Fprintf(w, "spool\t%s: %s with %d deliveries, %d in the log, %d not yet\n", escapeControl(s.Dir),
			countOf(len(s.Files), "file"), s.Deliveries, s.InLog, s.Waiting)
	}
	for _, wait := range r.Waiting {
		fmt.Fprintf(w, "waiting\t%s: %d, the oldest since %s (%s)\n", escapeControl(wait.Work), wait.Count, wait.Since,
			time.Duration(wait.Seconds*float64(time.Second)).Round(time.Second))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "note\t%s\n", escapeControl(note))
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "violations\tnone")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Spools {
		if err := printSpool(out, &r.Spools[i]); err != nil {
			return err
		}
	}
	for i := range r.Findings {
		if err := printFinding(out, &r.Findings[i]); err != nil {
			return err
		}
	}
	return nil
}

var spoolFiles = []column[verify.SpoolFile]{
	{"FILE", func(f verify.SpoolFile) string { return f.Name }},
	{"STATE", func(f verify.SpoolFile) string { return string(f.State) }},
	{"DELIVERIES", func(f verify.SpoolFile) string { return strconv.FormatInt(f.Deliveries, 10) }},
	{"IN LOG", func(f verify.SpoolFile) string { return strconv.FormatInt(f.InLog, 10) }},
	{"NOT YET", func(f verify.SpoolFile) string { return strconv.FormatInt(f.Waiting, 10) }},
	{"OLDEST", func(f verify.SpoolFile) string {
		if f.Oldest == nil {
			return ""
		}
		return f.Oldest.String()
	}},
	{"DAMAGED", func(f verify.SpoolFile) string { return strconv.Itoa(f.Damaged) }},
	{"TORN", func(f verify.SpoolFile) string { return map[bool]string{true: "yes", false: "no"}[f.Torn] }},
	{"NEXT STEP", func(f verify.SpoolFile) string { return f.NextStep }},
}

// printSpool prints the files of a spool, if there are any.
func printSpool(out io.Writer, s *verify.Spool) error {
	if len(s.Files) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nspool %s\n", escapeControl(s.Dir))
	return (&listPrinter[verify.SpoolFile]{out: out, columns: spoolFiles}).add(s.Files)
}

var violationColumns = []column[verify.Item]{
	{"EVENT", func(i verify.Item) string {
		if i.Event == 0 {
			return ""
		}
		return strconv.FormatInt(i.Event, 10)
	}},
	{"SOURCE", func(i verify.Item) string { return i.Source }},
	{"ACCOUNT", func(i verify.Item) string { return i.Account }},
	{"OBJECT", func(i verify.Item) string { return strings.TrimSpace(i.ObjectType + " " + i.ObjectID) }},
	{"DETAIL", func(i verify.Item) string { return i.Detail }},
	{"REPAIR", func(i verify.Item) string { return i.Repair }},
}

var spoolViolationColumns = []column[verify.Item]{
	{"FILE", func(i verify.Item) string { return i.File }},
	{"SOURCE", func(i verify.Item) string { return i.Source }},
	{"DETAIL", func(i verify.Item) string { return i.Detail }},
	{"REPAIR", func(i verify.Item) string { return i.Repair }},
}

func printFinding(out io.Writer, f *verify.Finding) error {
	fmt.Fprintf(out, "\n%s: %d\n%s\nRepair: %s\n", f.Kind, f.Count, f.Meaning, f.Repair)
	columns := violationColumns
	if len(f.Items) > 0 && f.Items[0].File != "" {
		columns = spoolViolationColumns
	}
	s := &listPrinter[verify.Item]{out: out, columns: columns}
	if err := s.add(f.Items); err != nil {
		return err
	}
	if more := f.Count - int64(len(f.Items)); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	return nil
}
