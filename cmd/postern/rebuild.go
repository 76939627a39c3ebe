package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
)

// rebuilding are the flags of `postern rebuild`.
type rebuilding struct {
	yes, noWait, compare, check bool
}

func newRebuildCommand(c *cli) *cobra.Command {
	var r rebuilding
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Make a source's objects anew from the log, compare them with the live ones, and swap",
		Long: `Make the objects of a source anew from the log, as the rule and the configuration of now make them: after a provider is read in another
way, or to prove that the mirror is what the log says.

A running processor stages them beside the live objects, which stay as they are and go on with live events. Then the run waits, paused:
compare shows what differs and why, swap puts the staged objects in the place of the live ones in one transaction, discard throws them
away. --yes swaps by itself. Killed anywhere, it goes on where it was. Of a source there is one open rebuild.`,
		Example: `  postern rebuild --source stripe --compare
  postern rebuild --source stripe --type invoice --yes --reason 'invoices are read by their own version now'
  postern rebuild compare 7 --check
  postern rebuild swap 7 --yes`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.RebuildParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "swap as soon as all is staged")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run and end")
	cmd.Flags().BoolVar(&r.compare, "compare", false, "compare when all is staged")
	checkFlag(cmd, &r.check)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := r.usable(); err != nil {
			return err
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return r.run(cmd, c, pool, filterValues(cmd, admin.RebuildParams))
		})
	}
	cmd.AddCommand(newRebuildCompareCommand(c))
	for _, what := range []struct{ name, short string }{
		{"swap", "Put what a rebuild has staged in the place of the live objects"}, {"discard", "Throw away what a rebuild has staged, and end it"},
	} {
		cmd.AddCommand(newRebuildSteerCommand(c, what.name, what.short))
	}
	return cmd
}

func checkFlag(cmd *cobra.Command, check *bool) {
	cmd.Flags().BoolVar(check, "check", false, "with the comparison: exit status 1 unless all is staged and the same")
}

func (r *rebuilding) usable() error {
	switch {
	case r.compare && r.yes:
		return usagef("--yes swaps, and then there is nothing to compare with: give --compare or --yes")
	case r.compare && r.noWait:
		return usagef("--compare waits until all is staged: give --compare or --no-wait")
	case r.check && !r.compare:
		return usagef("--check is about the comparison: give --compare too")
	}
	return nil
}

func (r *rebuilding) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	asked, err := admin.Rebuild(ctx, pool, values, r.yes, operator())
	switch {
	case err != nil:
		return err
	case r.noWait:
		return wait(cmd, c, pool, asked, nil, true)
	}
	tellEarlier(out, c, asked)
	watched := out
	if r.compare && c.output == "json" {
		watched = io.Discard // one text, that of the comparison
	}
	if err := watchRun(ctx, watched, c, pool, asked.Run.Run); err != nil {
		return err
	}
	now, err := runs.Show(ctx, pool, asked.Run.Run)
	switch {
	case err != nil:
		return err
	case r.compare:
		err = compare(ctx, out, c, pool, now.Run, r.check)
	}
	return err
}

// decision says what a rebuild waits for that is staged, "" for any other run.
func decision(r *runs.Run) string {
	if rebuild.Stage(r) != "staged" {
		return ""
	}
	return fmt.Sprintf("your decision: postern rebuild compare %d shows what differs; then postern rebuild swap %d, or postern rebuild discard %d",
		r.Run, r.Run, r.Run)
}

// stagedRebuilds tells which rebuilds of the listed source wait for a decision: until then the objects are as before.
func stagedRebuilds(ctx context.Context, pool *pgxpool.Pool, values url.Values) (lines []string, err error) {
	page, err := admin.Runs(ctx, pool, url.Values{"job": {rebuild.Job}, "status": {string(runs.Paused)}})
	if err != nil {
		return nil, err
	}
	for i := range page.Items {
		var asked rebuild.Order
		if err := json.Unmarshal(page.Items[i].Asked, &asked); err != nil {
			return nil, fmt.Errorf("read what run %d was asked for: %w", page.Items[i].Run, err)
		}
		waits, source := decision(&page.Items[i]), values.Get("source")
		if waits != "" && (source == "" || source == asked.Words["source"]) {
			lines = append(lines, fmt.Sprintf("the objects of source %s are as before rebuild %d, which waits for %s",
				asked.Words["source"], page.Items[i].Run, waits))
		}
	}
	return lines, nil
}

func newRebuildCompareCommand(c *cli) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use: "compare RUN", Short: "Compare what a rebuild has staged with the live objects: what differs, and why",
		Long: `Compare what a rebuild has staged with the live objects: how many are the same, and of each other one what differs and what the ledger
knows of the reason. The same are objects with equal version, tie set, windows, state, flags and rule version. What is owed as a look may depend
on the order of arrival, and is counted apart. Objects that show an event which the rebuild has not read yet are ahead, not wrong: resume the run
to catch up.`,
		Example: "  postern rebuild compare 7\n  postern rebuild compare 7 --check -o json", Args: wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := number(args[0])
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				return compare(cmd.Context(), cmd.OutOrStdout(), c, pool, run, check)
			})
		},
	}
	checkFlag(cmd, &check)
	return cmd
}

// newRebuildSteerCommand has a rebuild swapped or discarded; of a swap it waits for the end.
func newRebuildSteerCommand(c *cli, name, short string) *cobra.Command {
	var noWait, yes bool
	var reason string
	cmd := &cobra.Command{
		Use: name + " RUN", Short: short, Example: "  postern rebuild " + name + " 7", Args: wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := number(args[0])
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				if ok, err := confirmSteer(cmd, pool, run, name, yes); err != nil || !ok {
					return err
				}
				found, err := admin.SteerRebuild(cmd.Context(), pool, run, name, because(reason))
				if err != nil {
					return err
				}
				if noWait || found.Status.Final() {
					return printRun(cmd.OutOrStdout(), c, found)
				}
				return watchRun(cmd.Context(), cmd.OutOrStdout(), c, pool, run)
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	reasonFlag(cmd, &reason)
	if name == "swap" {
		cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not watch: print the run and end")
	}
	return cmd
}

// confirmSteer asks before an open rebuild is swapped or discarded. Of any other run there is nothing to decide.
func confirmSteer(cmd *cobra.Command, pool *pgxpool.Pool, run int64, name string, yes bool) (bool, error) {
	r, err := runs.Show(cmd.Context(), pool, run)
	if err != nil || r.Job != rebuild.Job || r.Status.Final() {
		return err == nil, err
	}
	question := fmt.Sprintf("Throw away what rebuild %d has staged?", run)
	if name == "swap" {
		question = fmt.Sprintf("Put what rebuild %d has staged in the place of the live objects?", run)
	}
	return confirm(cmd, question, yes)
}

// compare prints a comparison, part by part, and what it comes to.
func compare(ctx context.Context, out io.Writer, c *cli, pool *pgxpool.Pool, run int64, check bool) error {
	p := &comparing{out: out, json: c.output == "json", total: map[rebuild.Kind]int64{}}
	values := url.Values{}
	for {
		page, err := admin.CompareRebuild(ctx, pool, run, values)
		if err != nil {
			return err
		}
		if err := p.add(page); err != nil {
			return err
		}
		if page.Next == nil {
			return p.end(page, check)
		}
		values.Set("cursor", *page.Next)
	}
}

// comparing prints the parts of a comparison: for a program one object of its items and counts.
type comparing struct {
	out          io.Writer
	json         bool
	parts, items int
	total        map[rebuild.Kind]int64
	// stage is what the rebuild was doing; that of the last part where all were "staged".
	stage string
}

func (p *comparing) add(page *rebuild.Page) error {
	if p.stage == "staged" || p.parts == 0 {
		p.stage = page.Stage
	}
	p.parts++
	for kind, n := range page.Counts {
		p.total[kind] += n
	}
	for i := range page.Items {
		var err error
		if p.json {
			err = p.addJSON(&page.Items[i])
		} else {
			err = p.tell(&page.Items[i])
		}
		if err != nil {
			return err
		}
		p.items++
	}
	return nil
}

func (p *comparing) addJSON(d *rebuild.Difference) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	before := ",\n"
	if p.items == 0 {
		before = "{\"items\": [\n"
	}
	_, err = fmt.Fprintf(p.out, "%s%s", before, text)
	return err
}

func (p *comparing) tell(d *rebuild.Difference) error {
	name := object(d.ObjectType, d.ObjectID)
	if d.Account != "" {
		name += " of " + d.Account
	}
	lines := []string{kindWords[d.Kind], name}
	if len(d.What) > 0 {
		lines = append(lines, "  differs in", strings.Join(d.What, ", "))
	}
	if len(d.Paths) > 0 {
		lines = append(lines, "  state at", strings.Join(d.Paths, ", "))
	}
	for _, side := range []struct {
		name string
		*rebuild.Side
	}{{"  live", d.Live}, {"  staged", d.Staged}} {
		if side.Side != nil {
			lines = append(lines, side.name, fmt.Sprintf("%s; event %d, rule %d", side.Version, side.LastEventID, side.RuleVersion))
		}
	}
	for _, why := range d.Why {
		lines = append(lines, "  why", why)
	}
	if err := facts(p.out, lines...); err != nil {
		return err
	}
	_, err := fmt.Fprintln(p.out)
	return err
}

// kindWords are the kinds as a person reads them.
var kindWords = map[rebuild.Kind]string{rebuild.Differing: "differing", rebuild.OnlyLive: "only live", rebuild.OnlyStaged: "only staged", rebuild.Ahead: "ahead"}

// end prints what the comparison comes to; with check, a difference is an error.
func (p *comparing) end(last *rebuild.Page, check bool) error {
	if p.json {
		before := "\n"
		if p.items == 0 {
			before = `{"items": [`
		}
		counts, err := json.Marshal(p.total)
		if err != nil {
			return err
		}
		dead, err := json.Marshal(last.Dead)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.out, "%s], \"run\": %d, \"stage\": %q, \"cursor\": \"%d\", \"counts\": %s, \"dead\": %s}\n", before, last.Run, last.Stage, last.Cursor, counts, dead)
	} else if err := p.sum(last); err != nil {
		return err
	}
	if !check {
		return nil
	}
	return p.verdict(last)
}

// verdict is an error unless all that the log holds was compared and is the same.
func (p *comparing) verdict(last *rebuild.Page) error {
	differing, ahead := p.total[rebuild.Differing]+p.total[rebuild.OnlyLive]+p.total[rebuild.OnlyStaged], p.total[rebuild.Ahead]
	switch {
	case p.stage != "staged":
		return fmt.Errorf("nothing is proved: the rebuild is not at rest (%s): let it stage all first, then compare again (postern runs watch %d)", cmp.Or(p.stage, "waiting"), last.Run)
	case differing > 0:
		return fmt.Errorf("%s not the same", counted(int(differing), "object"))
	case ahead > 0:
		return fmt.Errorf("%s ahead of the rebuild, and not proved: let it catch up (postern runs resume %d), then compare again", counted(int(ahead), "object"), last.Run)
	}
	return nil
}

func (p *comparing) sum(last *rebuild.Page) error {
	n := func(kind rebuild.Kind) string { return strconv.FormatInt(p.total[kind], 10) }
	unfinished, dead := "", ""
	if d := last.Dead; d != nil && d.Events > 0 {
		dead = fmt.Sprintf("%d, the first of them %d: %s", d.Events, d.First, d.Reason)
	}
	if last.Stage != "staged" {
		unfinished = "the rebuild is not at rest (" + last.Stage + "), so this is not its end"
	}
	return facts(p.out, "same", n(rebuild.Same), "same but for the look that is owed", n(rebuild.LookOnly), "differing", n(rebuild.Differing), "only live", n(rebuild.OnlyLive),
		"only staged", n(rebuild.OnlyStaged), "ahead of the rebuild", n(rebuild.Ahead), "events applied live and dead now", dead, "note", unfinished)
}
