package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/terminal"
	"github.com/postern-gateway/postern/internal/verify"
)

func newVerifyCommand(c *cli) *cobra.Command {
	var o verify.Options
	return command{
		use: "verify", short: "Verify the integrity of all stored data", offline: true,
		long: `Verify the stored data in one snapshot of the database, while everything runs: each key
has its event, or retention has dropped its day; each event has its key, and an outcome or pending
work; bodies match their fingerprints; each object, deleted ones included, is the result of its
retained object and its events; no effect was planned twice or is in a state that no process can
leave. Nothing is written, except the report with --store-report. Unfinished work is shown with its
age, and is a violation only beyond --wait.

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
		example: `  postern verify
  postern verify --sample 10000 -o json
  postern verify --signatures --config /etc/postern/gateway.yaml
  postern verify --store-report   # for example each night, so that the console shows the result
  postern verify --spool /var/lib/postern/spool`,
		flags: []flag{{"signatures", "verify the signatures of stored deliveries again, as of their receipt", false},
			{"store-report", "store the report without its single violations, for the console and the API", false}},
		moreFlags: func(cmd *cobra.Command) {
			cmd.Flags().Int64Var(&o.Sample, "sample", 0,
				"check about this many objects and bodies, chosen at random (default all)")
			cmd.Flags().IntVar(&o.MaxItems, "most", verify.DefaultMaxItems,
				"list at most this many violations of a kind; all are counted")
			cmd.Flags().DurationVar(&o.MaxWait, "wait", verify.DefaultMaxWait,
				"maximum time that something may wait; 0s: no limit")
			cmd.Flags().StringArrayVar(&o.Spools, "spool", nil, "also check this `folder` of a spool, such as that "+
				"of a stopped gateway; may be given several times")
		},
		check: func(*call) error {
			if o.Sample < 0 || o.MaxItems < 0 || o.MaxWait < 0 {
				return usagef("--sample, --most and --wait are 0 or more")
			}
			return nil
		},
		run: func(x *call) error { return runVerify(x, o) },
	}.build(c)
}

func runVerify(x *call, o verify.Options) (err error) {
	if x.pool, err = x.connectAs(x.ctx, x.errs, operatorRole, verify.Connections); err != nil {
		return err
	}
	defer x.pool.Close()
	load := config.LoadSources
	if o.Signatures = x.has("signatures"); o.Signatures {
		load = config.LoadDev
	}
	endpoints, err := x.endpoints(load)
	// the report names the sources that are not checked
	if err != nil && (o.Signatures || !errors.Is(err, errNoSources)) {
		return err
	}
	if o.Known, err = events.RegisterSources(x.ctx, x.pool, nil); err != nil {
		return err
	}
	if o.Spools, err = spoolFolders(x, o.Spools); err != nil {
		return err
	}
	o.Pool, o.Sources = x.pool, operations.ConfiguredSources(endpoints, o.Known)
	screen, isTerminal := x.errs.(*terminal.Screen)
	if isTerminal {
		o.Progress = newVerifyProgress(screen)
	}
	r, err := verify.Verify(x.ctx, o)
	if isTerminal {
		_ = screen.Line("")
	}
	if err := show(x, r, err, printVerified); err != nil {
		return err
	}
	if x.has("store-report") {
		if err := operations.StoreVerifyReport(x.ctx, x.pool, r, operator()); err != nil {
			return err
		}
	}
	if n := r.Violations(); n > 0 {
		return fmt.Errorf("%s of %s", countOf(int(n), "violation"), countOf(len(r.Findings), "kind"))
	}
	return nil
}

// newVerifyProgress returns a function that shows how much is checked. Several goroutines may call
// it.
func newVerifyProgress(screen *terminal.Screen) func(what string, done, all int64) {
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
	}
}

// spoolFolders returns the folders that the command names, the one of the configuration, and those
// on this machine that the database knows. A gateway that stopped normally has removed its spool
// from the database.
func spoolFolders(x *call, folders []string) ([]string, error) {
	local, err := redaction.LocalSpools(x.ctx, x.pool)
	if err != nil {
		return nil, err
	}
	cfg, err := config.LoadWithInstance(x.config)
	if err != nil {
		return nil, err
	}
	if dir := cfg.Ingest.Spool.Dir; dir != "" {
		if name, err := spool.NameOfFolder(dir); name != "" || err != nil { // otherwise no gateway has used it
			local = append(local, redaction.LocalSpool{Name: name, Dir: dir, Err: err})
		}
	}
	seen := map[string]bool{}
	for _, dir := range folders {
		name, _ := spool.NameOfFolder(dir) // verify reports an error of the folder
		seen[name] = true
	}
	for _, s := range local {
		switch {
		case s.Err != nil:
			fmt.Fprintf(x.errs, "spool %s was not checked: %v; run this command with the account of its gateway\n",
				escapeControl(cmp.Or(s.Name, s.Dir)), s.Err)
		case !seen[s.Name]:
			folders = append(folders, s.Dir)
		}
		seen[s.Name] = true
	}
	return folders, nil
}

func printVerified(x *call, r *verify.Report) error {
	w := tabwriter.NewWriter(x.out, 0, 0, 2, ' ', 0)
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
		s := &r.Spools[i]
		if len(s.Files) == 0 {
			continue
		}
		fmt.Fprintf(x.out, "\nspool %s\n", escapeControl(s.Dir))
		if err := printTable(x.out, s.Files, spoolFiles); err != nil {
			return err
		}
	}
	for i := range r.Findings {
		if err := printFinding(x, &r.Findings[i]); err != nil {
			return err
		}
	}
	return nil
}

var spoolFiles = []column[verify.SpoolFile]{
	{"FILE", func(f verify.SpoolFile) any { return f.Name }},
	{"STATE", func(f verify.SpoolFile) any { return f.State }},
	{"DELIVERIES", func(f verify.SpoolFile) any { return f.Deliveries }},
	{"IN LOG", func(f verify.SpoolFile) any { return f.InLog }},
	{"NOT YET", func(f verify.SpoolFile) any { return f.Waiting }},
	{"OLDEST", func(f verify.SpoolFile) any { return f.Oldest }},
	{"DAMAGED", func(f verify.SpoolFile) any { return f.Damaged }},
	{"TORN", func(f verify.SpoolFile) any { return map[bool]string{true: "yes", false: "no"}[f.Torn] }},
	{"NEXT STEP", func(f verify.SpoolFile) any { return f.NextStep }},
}

var violationColumns = []column[verify.Item]{
	{"EVENT", func(i verify.Item) any {
		if i.Event == 0 {
			return ""
		}
		return strconv.FormatInt(i.Event, 10)
	}},
	{"SOURCE", func(i verify.Item) any { return i.Source }},
	{"ACCOUNT", func(i verify.Item) any { return i.Account }},
	{"OBJECT", func(i verify.Item) any { return strings.TrimSpace(i.ObjectType + " " + i.ObjectID) }},
	{"DETAIL", func(i verify.Item) any { return i.Detail }},
	{"REPAIR", func(i verify.Item) any { return i.Repair }},
}

var spoolViolationColumns = []column[verify.Item]{
	{"FILE", func(i verify.Item) any { return i.File }},
	{"SOURCE", func(i verify.Item) any { return i.Source }},
	{"DETAIL", func(i verify.Item) any { return i.Detail }},
	{"REPAIR", func(i verify.Item) any { return i.Repair }},
}

func printFinding(x *call, f *verify.Finding) error {
	fmt.Fprintf(x.out, "\n%s: %d\n%s\nRepair: %s\n", f.Kind, f.Count, f.Meaning, f.Repair)
	columns := violationColumns
	if len(f.Items) > 0 && f.Items[0].File != "" {
		columns = spoolViolationColumns
	}
	if err := printTable(x.out, f.Items, columns); err != nil {
		return err
	}
	if more := f.Count - int64(len(f.Items)); more > 0 {
		fmt.Fprintf(x.out, "and %d more\n", more)
	}
	return nil
}
