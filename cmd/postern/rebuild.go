package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
)

func newRebuildCommand(c *cli) *cobra.Command {
	cmd := command{
		use:   "rebuild",
		short: "Rebuild the objects of a source from the log, compare them with the live objects, and swap",
		long: `Rebuild the objects of a source from the log with the current rules and configuration:
after a change in how a provider is read, or to verify that the mirror matches the log.

A running processor stages the objects separately. The live objects stay and continue with live
events. Then the run is paused for a decision: compare shows the differences and their reasons, swap
replaces the live objects, discard deletes the staged objects. --yes swaps automatically. A swap
locks some objects at a time. After a crash the run continues; a swap that has replaced objects can
be paused, not cancelled. Each source can have one open rebuild.`,
		example: `  postern rebuild --source stripe --compare
  postern rebuild --source stripe --type invoice --yes --reason 'invoices are read by their own version now'
  postern rebuild compare 7 --check
  postern rebuild swap 7 --yes`,
		params: operations.Params(operations.RebuildParams{}, "swap"),
		flags: []flag{noWaitFlag, {yesFlag.name, "swap as soon as all objects are staged", false},
			{"compare", "compare when all objects are staged", false},
			{"check", "with --compare: " + checkHelp, false}},
		check: func(x *call) error {
			switch {
			case x.has("compare") && x.has("yes"):
				return usagef("--yes swaps, and then there is nothing to compare: give --compare or --yes")
			case x.has("compare") && x.has("no-wait"):
				return usagef("--compare waits until all objects are staged: give --compare or --no-wait")
			case x.has("check") && !x.has("compare"):
				return usagef("--check needs a comparison: give --compare too")
			}
			return nil
		},
		run: startRebuild,
	}.build(c)
	cmd.AddCommand(newRebuildCompareCommand(c), newRebuildDecisionCommand(c, command{use: "swap RUN",
		short: "Replace the live objects with the staged objects of a rebuild",
		flags: []flag{yesFlag, reasonFlag, noWaitFlag}}, "Replace the live objects with the staged objects of "+
		"rebuild %d?", operations.SwapRebuild),
		newRebuildDecisionCommand(c, command{use: "discard RUN",
			short: "Discard the staged objects of a rebuild and end it", flags: []flag{yesFlag, reasonFlag}},
			"Discard the staged objects of rebuild %d?", operations.DiscardRebuild))
	return cmd
}

const checkHelp = "exit status 1 unless all objects are staged and equal"

func startRebuild(x *call) error {
	p, err := parse[operations.RebuildParams](x)
	if err != nil {
		return err
	}
	p.Swap = x.has("yes")
	created, err := operations.Rebuild(x.ctx, x.pool, p, operator())
	if err != nil || !x.has("compare") {
		return x.showOrWatch(created, err)
	}
	x.printEarlier(created)
	watched := *x
	if x.json() {
		watched.out = io.Discard // the JSON output is only the comparison
	}
	if err := watched.watchRun(created.Run.ID); err != nil {
		return err
	}
	return printComparison(x, created.Run.ID)
}

// describeDecision names the commands with which an operator compares, swaps or discards a staged
// rebuild; "" for any other run.
func describeDecision(r *runs.Run) string {
	if rebuild.Stage(r) != "staged" {
		return ""
	}
	return fmt.Sprintf("postern rebuild compare %d shows the differences; then postern rebuild swap %d or postern "+
		"rebuild discard %d", r.ID, r.ID, r.ID)
}

// swapRequested says that a rebuild has staged its objects and is to swap them.
func swapRequested(r *runs.Run) bool {
	var params rebuild.Params
	return r.Job == rebuild.Job && r.Bound > 0 && r.Cursor >= r.Bound &&
		json.Unmarshal(r.Params, &params) == nil && params.Swap
}

// stagedRebuilds lists the rebuilds of the source that await a decision. Until then the live
// objects do not change.
func stagedRebuilds(x *call) (lines []string, err error) {
	page, err := operations.Runs(x.ctx, x.pool, operations.RunParams{Job: rebuild.Job, Status: string(runs.Paused)})
	if err != nil {
		return nil, err
	}
	for i := range page.Items {
		var params rebuild.Params
		if err := json.Unmarshal(page.Items[i].Params, &params); err != nil {
			return nil, fmt.Errorf("read the parameters of run %d: %w", page.Items[i].ID, err)
		}
		choice, source := describeDecision(&page.Items[i]), x.values["source"]
		if choice != "" && (source == "" || source == params.Input["source"]) {
			lines = append(lines, fmt.Sprintf("the objects of source %s are those from before rebuild %d, which is "+
				"awaiting decision: %s", params.Input["source"], page.Items[i].ID, choice))
		}
	}
	return lines, nil
}

func newRebuildCompareCommand(c *cli) *cobra.Command {
	return command{
		use: "compare RUN", short: "Compare the staged objects of a rebuild with the live objects",
		long: `Compare the staged objects of a rebuild with the live objects: how many are equal, and
for each other one the differences and their reason according to the outcomes. Equal objects have
the same version, tied states, times, state, flags and rule version. A pending refetch may depend on
the order of arrival and is counted separately. Objects with an event that the rebuild has not read
yet are ahead, not wrong: resume the run to catch up.`,
		example: "  postern rebuild compare 7\n  postern rebuild compare 7 --check -o json",
		ids:     "postern runs list",
		flags:   []flag{{"check", checkHelp, false}},
		run:     func(x *call) error { return printComparison(x, x.ids[0]) },
	}.build(c)
}

// newRebuildDecisionCommand completes the commands swap and discard. They ask for confirmation if
// the run is an open rebuild. After a swap the command waits for the end of the run.
func newRebuildDecisionCommand(c *cli, s command, question string, decide changeRun) *cobra.Command {
	name, _, _ := strings.Cut(s.use, " ")
	s.example, s.ids = "  postern rebuild "+name+" 7", "postern runs list"
	s.run = func(x *call) error {
		r, err := runs.Show(x.ctx, x.pool, x.ids[0])
		if err != nil {
			return err
		}
		if r.Job == rebuild.Job && !r.Status.Ended() {
			if ok, err := x.confirm(fmt.Sprintf(question, r.ID)); err != nil || !ok {
				return err
			}
		}
		found, err := decide(x.ctx, x.pool, operations.RunChange{Run: r.ID, Reason: x.reason()}, operator())
		if err != nil || found.Status.Ended() {
			return show(x, found, err, printRun)
		}
		return x.showOrWatch(&operations.StartedRun{Run: found}, nil)
	}
	return s.build(c)
}

// printComparison prints a comparison page by page, and its totals.
func printComparison(x *call, run int64) error {
	p := &comparisonPrinter{out: x.out, json: x.json(), totals: map[rebuild.Kind]int64{}}
	params := operations.CompareParams{Run: run}
	for {
		page, err := operations.CompareRebuild(x.ctx, x.pool, params)
		if err != nil {
			return err
		}
		if err := p.add(page); err != nil {
			return err
		}
		if page.Next == nil {
			return p.finish(page, x.has("check"))
		}
		params.Cursor = *page.Next
	}
}

// comparisonPrinter prints the pages of a comparison as text, or as one JSON object with items and
// counts.
type comparisonPrinter struct {
	out          io.Writer
	json         bool
	pages, items int
	totals       map[rebuild.Kind]int64
	// stage is "staged" if the rebuild was staged at each page; otherwise the first other stage.
	stage string
}

func (p *comparisonPrinter) add(page *rebuild.Page) error {
	if p.stage == "staged" || p.pages == 0 {
		p.stage = page.Stage
	}
	p.pages++
	for kind, n := range page.Counts {
		p.totals[kind] += n
	}
	for i := range page.Items {
		var err error
		if p.json {
			err = p.addJSON(&page.Items[i])
		} else {
			err = p.printDifference(&page.Items[i])
		}
		if err != nil {
			return err
		}
		p.items++
	}
	return nil
}

func (p *comparisonPrinter) addJSON(d *rebuild.Difference) error {
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

func (p *comparisonPrinter) printDifference(d *rebuild.Difference) error {
	name := describeObject(d.ObjectType, d.ObjectID)
	if d.Account != "" {
		name += " of " + d.Account
	}
	lines := []any{kindLabels[d.Kind], name}
	if len(d.Parts) > 0 {
		lines = append(lines, "  differs in", strings.Join(d.Parts, ", "))
	}
	if len(d.Paths) > 0 {
		lines = append(lines, "  state at", strings.Join(d.Paths, ", "))
	}
	for _, side := range []struct {
		name string
		*rebuild.ObjectRow
	}{{"  live", d.Live}, {"  staged", d.Staged}} {
		if side.ObjectRow != nil {
			lines = append(lines, side.name, fmt.Sprintf("%s; event %d, rule %d", side.Version, side.LastEventID,
				side.RuleVersion))
		}
	}
	for _, reason := range d.Reasons {
		lines = append(lines, "  reason", reason)
	}
	if err := printFields(p.out, lines...); err != nil {
		return err
	}
	_, err := fmt.Fprintln(p.out)
	return err
}

// kindLabels are the printed names of the kinds of differences.
var kindLabels = map[rebuild.Kind]string{rebuild.Differing: "differing", rebuild.OnlyLive: "missing in the rebuild",
	rebuild.OnlyStaged: "new in the rebuild", rebuild.LiveNewer: "live is newer"}

// finish prints the totals of the comparison. With check, a difference is an error.
func (p *comparisonPrinter) finish(last *rebuild.Page, check bool) error {
	if p.json {
		before := "\n"
		if p.items == 0 {
			before = `{"items": [`
		}
		counts, err := json.Marshal(p.totals)
		if err != nil {
			return err
		}
		dead, err := json.Marshal(last.Dead)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.out, "%s], \"run\": %d, \"stage\": %q, \"cursor\": \"%d\", \"counts\": %s, \"dead\": %s}\n",
			before, last.Run, last.Stage, last.Cursor, counts, dead)
	} else if err := p.printTotals(last); err != nil {
		return err
	}
	if !check {
		return nil
	}
	return p.check(last)
}

// check returns an error unless everything in the log was compared and is equal.
func (p *comparisonPrinter) check(last *rebuild.Page) error {
	differing, ahead := p.totals[rebuild.Differing]+p.totals[rebuild.OnlyLive]+p.totals[rebuild.OnlyStaged],
		p.totals[rebuild.LiveNewer]
	switch {
	case p.stage != "staged":
		return fmt.Errorf("the comparison is incomplete: the rebuild is not staged (%s): wait until it is, then "+
			"compare again (postern runs watch %d)", cmp.Or(p.stage, "queued"), last.Run)
	case differing > 0:
		return fmt.Errorf("%s not equal", countOf(int(differing), "object"))
	case ahead > 0:
		return fmt.Errorf("%s changed since the rebuild read the log: let it catch up "+
			"(postern runs resume %d), then compare again", countOf(int(ahead), "object"), last.Run)
	}
	return nil
}

func (p *comparisonPrinter) printTotals(last *rebuild.Page) error {
	n := func(kind rebuild.Kind) string { return strconv.FormatInt(p.totals[kind], 10) }
	unfinished, dead := "", ""
	if d := last.Dead; d != nil && d.Events > 0 {
		dead = fmt.Sprintf("%d, the first of them %d: %s", d.Events, d.First, d.Reason)
	}
	if last.Stage != "staged" {
		unfinished = "the rebuild is not staged (" + last.Stage + "), so the comparison is incomplete"
	}
	return printFields(p.out, "same", n(rebuild.Same), "equal, refetch pending", n(rebuild.RefetchOnly),
		"differing", n(rebuild.Differing), "missing in the rebuild", n(rebuild.OnlyLive),
		"new in the rebuild", n(rebuild.OnlyStaged), "changed since the rebuild read the log", n(rebuild.LiveNewer),
		"events applied live that are dead in the rebuild", dead, "note", unfinished)
}
