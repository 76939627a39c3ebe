package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// reconcileSwitches are the parameters of a reconciliation that are flags without a value.
var reconcileSwitches = []flag{
	{"all-accounts", "create a run for each account in the configuration or the mirror (Stripe Connect)", false},
	{"dry-run", "only count; append nothing", false},
	{"objects", "compare all objects that the API lists with the mirror", false},
	{"full", "list all objects, also where the API can list only the changed ones", false},
}

func newReconcileCommand(c *cli) *cobra.Command {
	return command{
		use: "reconcile SOURCE", short: "Compare the log with the provider's API and add missing events",
		long: `Compare the log with the provider's API (sources.NAME.api in the configuration) and
append the events that the provider has sent and the log lacks. With --type and --object, append the
current state of that object. Appended events are processed like all others.

With --objects, or --type alone, all objects that the API lists (of that type) are compared with the
mirror, and those that differ are fetched and appended. If the API can list only what changed, it
does, unless --full requests everything. Only a full list shows that an object is gone. Such an
object is requested by its id, and gets a tombstone if the API says that it is missing. More than 20
such objects that are more than 1 % of the existing ones need an approval (postern runs approve).
postern drift report RUN shows the findings.

A running processor executes the run within the rate budget that all processes share. If that
process ends, another one continues the run. Without --since it starts a little before the time
until which the log is complete (postern drift show), or as far back as the provider can list. The
run is done when everything that it appended has its outcome. Ctrl-C stops only the watching;
postern runs pause, resume and cancel control the run. The exit status is 1 if the run failed.

The run is for one account of the source: that of the API key, or --account. With --all-accounts a
processor creates a run for each known account, except those that the source's reconcile.own_account and
reconcile.exclude exclude and those whose previous run is still open. The command watches them one by
one, and the exit status is 1 if any failed.

With --dry-run it only counts: nothing is appended, and the log does not count as complete.`,
		example: `  postern reconcile stripe
  postern reconcile stripe --since 6h --dry-run
  postern reconcile stripe --objects --dry-run
  postern reconcile stripe --type customer --full
  postern reconcile stripe --all-accounts --since 6h
  postern reconcile stripe --account acct_1 --type customer --object cus_1 --reason 'finance reports a wrong address'`,
		params: slices.DeleteFunc(operations.Params(operations.ReconcileParams{}), func(p operations.Param) bool {
			return p.Name == "source" || slices.ContainsFunc(reconcileSwitches,
				func(f flag) bool { return f.name == flagName(p.Name) })
		}),
		flags: append([]flag{noWaitFlag}, reconcileSwitches...),
		run:   startReconcile,
	}.build(c)
}

func startReconcile(x *call) error {
	x.values["source"] = x.args[0]
	for _, f := range reconcileSwitches {
		if x.has(f.name) {
			x.values[strings.ReplaceAll(f.name, "-", "_")] = "true"
		}
	}
	p, err := parse[operations.ReconcileParams](x)
	if err != nil {
		return err
	}
	created, err := operations.Reconcile(x.ctx, x.pool, p, operator())
	if err := x.showOrWatch(created, err); err != nil || x.has(noWaitFlag.name) {
		return err
	}
	accountRuns, err := reconcile.StartedRuns(x.ctx, x.pool, created.Run.ID)
	switch {
	case err != nil:
		return err
	case len(accountRuns) > 0:
		return watchAccountRuns(x, accountRuns)
	}
	return printReconciled(x, created.Run.ID)
}

// watchAccountRuns watches the runs of all accounts, also after one fails.
func watchAccountRuns(x *call, accountRuns []int64) error {
	var failures []error
	for _, run := range accountRuns {
		if !x.json() {
			fmt.Fprintln(x.out)
		}
		err := x.watchRun(run)
		if err == nil {
			err = printReconciled(x, run)
		}
		failures = append(failures, err)
		if x.ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failures...)
}

// printReconciled prints the result of a reconciliation that is done, as text.
func printReconciled(x *call, run int64) error {
	r, err := runs.Show(x.ctx, x.pool, run)
	if err != nil || r.Status != runs.Done || x.json() {
		return err
	}
	var o reconcile.Params
	if err := json.Unmarshal(r.Params, &o); err != nil {
		return fmt.Errorf("read the parameters of run %d: %w", run, err)
	}
	if _, allAccounts := r.Counts[reconcile.Accounts]; allAccounts {
		return nil // it created no run, because the runs of all accounts are still open; its counts show that
	}
	if r.Counts[reconcile.Disconnected] > 0 {
		_, err := fmt.Fprintf(x.out, "\nThe account is disconnected: the API key no longer has access to it. It was "+
			"skipped, and this run verified nothing of it: postern drift show --source %s\n",
			escapeControl(o.Input["source"]))
		return err
	}
	if o.Scope == reconcile.Objects {
		return printReport(x, run)
	}
	since, until, err := watermarks.Get(x.ctx, x.pool, o.Source, o.Account, o.Scope)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(x.out, "\n%s\n", escapeControl(describeReconciled(&o, r.Counts, since, until)))
	if n := r.Counts[reconcile.SkewSeconds]; n > 0 && err == nil {
		_, err = fmt.Fprintf(x.out, "%s\n", describeClockSkew(n))
	}
	return err
}

// describeReconciled describes the result of a reconciliation. since and until limit the period for
// which the log is complete; they are zero if there is none.
func describeReconciled(o *reconcile.Params, counts map[string]int64, since, until time.Time) string {
	if o.Scope == reconcile.Object {
		switch {
		case counts[reconcile.Absent] > 0:
			return "Neither the mirror nor the API has such an object: is the id correct? Nothing was appended."
		case o.DryRun:
			return "The API has the object. It was a dry run: nothing was appended."
		case counts[reconcile.Missing] > 0:
			return "The API's current state was missing in the log and is appended."
		}
		return "The log already has the API's current state."
	}
	text := fmt.Sprintf("The provider has %s: %d were in the log and %d were missing",
		countOf(int(counts[reconcile.Processed]), "event"), counts[reconcile.Present], counts[reconcile.Missing])
	if n := counts[reconcile.Undelivered]; n > 0 {
		text += fmt.Sprintf(", and the provider reports %d of them as not delivered", n)
	}
	if n := counts[reconcile.Conflicting]; n > 0 {
		text += fmt.Sprintf(", and %d have other content in the log (postern conflicts list)", n)
	}
	if n := counts[reconcile.Rejected]; n > 0 {
		text += fmt.Sprintf(". %d more are of accounts that the source does not accept and were skipped", n)
	}
	switch {
	case o.DryRun:
		return text + ". It was a dry run: nothing was appended, and the log does not count as complete."
	case until.IsZero():
		return text + "."
	}
	return text + ". The log is complete from " + events.Instant{Time: since}.String() + " until " +
		events.Instant{Time: until}.String() + "."
}

// describeReconcileCounts describes the counts of a reconciliation.
func describeReconcileCounts(counts map[string]int64) string {
	if n, allAccounts := counts[reconcile.Accounts]; allAccounts {
		text := "runs created for " + countOf(int(n), "account")
		if busy := counts[reconcile.BusyAccounts]; busy > 0 {
			text += fmt.Sprintf(", and none for %d whose previous run is still open", busy)
		}
		return text
	}
	parts := []string{fmt.Sprintf("%d processed", counts[reconcile.Processed])}
	for _, what := range []string{reconcile.Present, objectscan.Equal, reconcile.Missing, objectscan.MirrorOlder,
		objectscan.MirrorNewer, objectscan.ContentDiffers, objectscan.NotListed, objectscan.Orphans,
		objectscan.Repaired,
		objectscan.Unrepaired, objectscan.NotListable, objectscan.SkippedTypes, objectscan.SkippedParts,
		reconcile.Undelivered,
		reconcile.Conflicting, reconcile.Rejected, reconcile.Absent} {
		parts = appendCounts(parts, counts, what, strings.ReplaceAll(what, "_", " "))
	}
	if counts[reconcile.Disconnected] > 0 {
		parts = append(parts, "the account is disconnected")
	}
	if n := counts[reconcile.SkewSeconds]; n > 0 {
		parts = append(parts, fmt.Sprintf("clocks differ by %d s", n))
	}
	return strings.Join(parts, ", ")
}
