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

// verifying are the flags of `postern verify`.
type verifying struct {
	sample     int64
	most       int
	wait       time.Duration
	signatures bool
	spools     []string
}

func newVerifyCommand(c *cli) *cobra.Command {
	v := verifying{}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare all that is stored with what must hold of it",
		Long: `Compare, in one view of the database and beside everything that runs, what is stored with what must hold of it: each key has its event, or retention has dropped
its day; each event has its key, and its outcome or somebody who still works on it; bodies are what their fingerprints say; each object is what its base and
its events make of it, deleted ones included; no effect was planned twice, or left where nobody goes on with it. It writes nothing. What is under way is told with its age, and is a violation only beyond --wait.

Violations are named, --most of each kind, with what mends them, and make the exit status 1. How events are read is taken from --config FILE, as processors have it; of sources that are not in
it, only keys, events and outcomes are compared, which is told. With --signatures the secrets must be in it too.

What gateways have told of their spools is told too: what is in one waits since the oldest of it was acknowledged, or, where its gateway did not tell that, since the spool was last empty, and is a
violation beyond --wait; of which nobody has told for ` + redaction.SpoolLate.String() + `, a note says so.
The deliveries that the spool of a gateway on this machine holds are looked for in the log: those that are not there yet wait, and are a
violation beyond --wait. A damaged file is one until it is removed, and so is a delivery that was set apart and is not in the log. The folder is only read, and its gateway may run meanwhile.
The database knows the spools of gateways that run or were killed. The spool in the configuration of --config is looked into too.
--spool DIR, as often as there are folders, names others: those of gateways that were stopped, and of other machines.

The view is held until the end: meanwhile PostgreSQL cannot clean up rows that were replaced, and retention waits with the drop of a day.`,
		Example: `  postern verify
  postern verify --sample 10000 -o json
  postern verify --signatures --config /etc/postern/gateway.yaml
  postern verify --spool /var/lib/postern/spool`,
		Args: wantArgs(),
	}
	cmd.Flags().Int64Var(&v.sample, "sample", 0, "compare about so many objects and bodies, chosen at random (default all)")
	cmd.Flags().IntVar(&v.most, "most", verify.DefaultMost, "name so many violations of a kind; all are counted")
	cmd.Flags().DurationVar(&v.wait, "wait", verify.DefaultWait, "how long something may wait; 0s: for ever")
	cmd.Flags().BoolVar(&v.signatures, "signatures", false, "prove stored deliveries again, as of their receipt")
	cmd.Flags().StringArrayVar(&v.spools, "spool", nil, "look into this `folder` of a spool too, such as that of a gateway that was stopped; may be given several times")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if v.sample < 0 || v.most < 0 || v.wait < 0 {
			return usagef("--sample, --most and --wait are 0 or more")
		}
		return v.run(cmd, c)
	}
	return cmd
}

func (v *verifying) run(cmd *cobra.Command, c *cli) error {
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
	tell, end := verifyProgress(errs)
	o.Progress = tell
	r, err := verify.Verify(ctx, o)
	if end(); err != nil {
		return err
	}
	return tellVerified(cmd.OutOrStdout(), c, r)
}

func (v *verifying) options(ctx context.Context, c *cli, pool *pgxpool.Pool, errs io.Writer) (o verify.Options, err error) {
	load := config.LoadSources
	if v.signatures {
		load = config.LoadDev
	}
	endpoints, err := c.endpoints(load)
	if err != nil && (v.signatures || !errors.Is(err, errNoSources)) { // what is not compared then is told for each source
		return o, err
	}
	known, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return o, err
	}
	spools, err := v.folders(ctx, c, pool, errs)
	if err != nil {
		return o, err
	}
	return verify.Options{Pool: pool, Known: known, Sources: admin.Configured(endpoints, known), Sample: v.sample, Signatures: v.signatures, Most: v.most, Wait: v.wait, Spools: spools}, nil
}

// folders are those that the command names, that of the configuration, and those on this machine
// that the database knows. A gateway that was stopped in order has removed its spool from there.
func (v *verifying) folders(ctx context.Context, c *cli, pool *pgxpool.Pool, errs io.Writer) ([]string, error) {
	local, err := redaction.LocalSpools(ctx, pool)
	if err != nil {
		return nil, err
	}
	cfg, err := config.LoadBeside(c.config)
	if err != nil {
		return nil, err
	}
	if dir := cfg.Ingest.Spool.Dir; dir != "" {
		if name, err := spool.NameIn(dir); name != "" || err != nil { // else no gateway has used it
			local = append(local, redaction.LocalSpool{Name: name, Dir: dir, Err: err})
		}
	}
	seen := map[string]bool{}
	for _, dir := range v.spools {
		name, _ := spool.NameIn(dir) // verify tells what is wrong with the folder
		seen[name] = true
	}
	folders := v.spools
	for _, s := range local {
		switch {
		case s.Err != nil:
			fmt.Fprintf(errs, "spool %s was not looked into: %v; run this command as the account of its gateway\n",
				plain(cmp.Or(s.Name, s.Dir)), s.Err)
		case !seen[s.Name]:
			folders = append(folders, s.Dir)
		}
		seen[s.Name] = true
	}
	return folders, nil
}

// verifyProgress tells on a terminal how much was looked at, until the end.
func verifyProgress(errs io.Writer) (tell func(what string, done, all int64), end func()) {
	screen, ok := errs.(*terminal.Screen)
	if !ok {
		return nil, func() {}
	}
	var mu sync.Mutex
	var told time.Time
	return func(what string, done, all int64) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(told) < 200*time.Millisecond {
			return
		}
		told = time.Now()
		const width = 30
		full := int(width * done / max(all, 1))
		_ = screen.Line(fmt.Sprintf("[%s%s] %d of about %d %s", strings.Repeat("#", full), strings.Repeat(".", width-full), done, all, what))
	}, func() { _ = screen.Line("") }
}

// tellVerified prints a report; the error says that there are violations.
func tellVerified(out io.Writer, c *cli, r *verify.Report) error {
	print := printVerified
	if c.output == "json" {
		print = func(out io.Writer, r *verify.Report) error { return printJSON(out, r) }
	}
	if err := print(out, r); err != nil {
		return err
	}
	if n := r.Violations(); n > 0 {
		return fmt.Errorf("%s of %s", counted(int(n), "violation"), counted(len(r.Findings), "kind"))
	}
	return nil
}

func printVerified(out io.Writer, r *verify.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "as of\t%s\n", r.At)
	for _, what := range []string{"keys", "events", "outcomes", "bodies", "signatures", "objects", "effects", "spooled"} {
		if n, ok := r.Looked[what]; ok {
			fmt.Fprintf(w, "%s\t%d\n", what, n)
		}
	}
	for i := range r.Spools {
		s := &r.Spools[i]
		fmt.Fprintf(w, "spool\t%s: %s with %d deliveries, %d in the log, %d not yet\n", plain(s.Dir), counted(len(s.Files), "file"), s.Deliveries, s.InLog, s.Waiting)
	}
	for _, wait := range r.Waiting {
		fmt.Fprintf(w, "waiting\t%s: %d, the oldest since %s (%s)\n", plain(wait.What), wait.Count, wait.Since, time.Duration(wait.Seconds*float64(time.Second)).Round(time.Second))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "note\t%s\n", plain(note))
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
	{"WHAT BECOMES OF IT", func(f verify.SpoolFile) string { return f.Then }},
}

// printSpool prints the files of a spool; nothing where there are none.
func printSpool(out io.Writer, s *verify.Spool) error {
	if len(s.Files) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nspool %s\n", plain(s.Dir))
	return (&sink[verify.SpoolFile]{out: out, columns: spoolFiles}).add(s.Files)
}

var offenders = []column[verify.Item]{
	{"EVENT", func(i verify.Item) string {
		if i.Event == 0 {
			return ""
		}
		return strconv.FormatInt(i.Event, 10)
	}},
	{"SOURCE", func(i verify.Item) string { return i.Source }},
	{"ACCOUNT", func(i verify.Item) string { return i.Account }},
	{"OBJECT", func(i verify.Item) string { return strings.TrimSpace(i.ObjectType + " " + i.ObjectID) }},
	{"WHAT", func(i verify.Item) string { return i.Detail }},
	{"MENDED BY", func(i verify.Item) string { return i.Mend }},
}

var spoolOffenders = []column[verify.Item]{
	{"FILE", func(i verify.Item) string { return i.File }},
	{"SOURCE", func(i verify.Item) string { return i.Source }},
	{"WHAT", func(i verify.Item) string { return i.Detail }},
	{"MENDED BY", func(i verify.Item) string { return i.Mend }},
}

func printFinding(out io.Writer, f *verify.Finding) error {
	fmt.Fprintf(out, "\n%s: %d\n%s\nWhat mends it: %s\n", f.Kind, f.Count, f.Means, f.Mend)
	columns := offenders
	if len(f.Items) > 0 && f.Items[0].File != "" {
		columns = spoolOffenders
	}
	s := &sink[verify.Item]{out: out, columns: columns}
	if err := s.add(f.Items); err != nil {
		return err
	}
	if more := f.Count - int64(len(f.Items)); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	return nil
}
