package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// showOrWatch prints a new run with --no-wait, and watches it until it ends otherwise. It returns
// err if that is set.
func (x *call) showOrWatch(run *operations.StartedRun, err error) error {
	switch {
	case err != nil:
		return err
	case x.has(noWaitFlag.name):
		return x.showStarted(run)
	}
	x.printEarlier(run)
	return x.watchRun(run.Run.ID)
}

// showStarted prints a new run, and how to approve it.
func (x *call) showStarted(run *operations.StartedRun) error {
	x.printEarlier(run)
	err := show(x, run.Run, nil, printRun)
	if err == nil && run.Run.Status == runs.AwaitingApproval && !x.json() {
		_, err = fmt.Fprintf(x.out, "\nIt starts after an approval: postern runs approve %d --reason TEXT\n",
			run.Run.ID)
	}
	return err
}

// printEarlier reports that the idempotency key was used before and returned an earlier run.
func (x *call) printEarlier(run *operations.StartedRun) {
	if run.Earlier && !x.json() {
		fmt.Fprintf(x.out, "Run %d was created with this key before; no other run is created.\n", run.Run.ID)
	}
}

// waitForEarlier ends a command that has selected nothing. If its idempotency key was used before,
// it still waits for that run, which may be at its last events or have failed.
func (x *call) waitForEarlier(earlier *operations.StartedRun, err error) error {
	if earlier == nil {
		return err
	}
	return x.showOrWatch(earlier, err)
}

func printRun(x *call, r *runs.Run) error {
	name, progress := describeProgress(r)
	pairs := []any{"run", r.ID, "job", r.Job, "schedule", r.Schedule,
		"planned for", r.PlannedAt, "idempotency key", r.IdempotencyKey,
		"status", r.Status, detailLabel(r), r.Detail, "awaiting decision", describeDecision(r),
		"parameters", describeParams(r), "actor", r.Actor, "reason", r.Reason}
	for _, a := range r.Approvals {
		pairs = append(pairs, "approved by", a.Actor+" at "+a.At.String(), "reason", a.Reason, "approved", a.Message)
	}
	if len(r.Approvals) == 0 { // of a run from before approvals were kept as a list
		pairs = append(pairs, "approved by", r.ApprovedBy, "reason", r.ApprovalReason)
	}
	return printFields(x.out, append(pairs, "created", r.CreatedAt, "started", r.StartedAt,
		"ended", r.EndedAt, "executed by", r.LeaseOwner, "no progress since", r.StalledSince,
		"stage", rebuild.Stage(r), name, progress, unitOf(r), describeCounts(r.Job, r.Counts))...)
}

// decisionClause returns describeDecision as a clause.
func decisionClause(r *runs.Run) string {
	if d := describeDecision(r); d != "" {
		return "awaiting decision: " + d
	}
	return ""
}

// detailLabel returns the label of the run's detail.
func detailLabel(r *runs.Run) string {
	switch {
	case r.Status == runs.Failed:
		return "reason of the failure"
	case r.Status.Ended():
		return "last detail"
	case r.ConsecutiveFailures == 1:
		return "deferred once"
	case r.ConsecutiveFailures > 1:
		return fmt.Sprintf("deferred %d times", r.ConsecutiveFailures)
	}
	return "now"
}

// describeParams describes the parameters of a run. Parameters without a readable form are printed
// as stored.
func describeParams(r *runs.Run) string {
	if o, ok := reconciliation(r); ok {
		return o.describe()
	}
	var stored struct {
		Input map[string]string `json:"input"`
	}
	if json.Unmarshal(r.Params, &stored) != nil {
		return string(r.Params)
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(stored.Input)) {
		parts = append(parts, name+" "+stored.Input[name])
	}
	parts = append(parts, replayModes(r)...)
	if len(parts) == 0 {
		return string(r.Params)
	}
	return strings.Join(parts, ", ")
}

// replayModes describes how a replay applies its events, where that differs from the default.
func replayModes(r *runs.Run) (parts []string) {
	var params replay.Params
	if r.Job != replay.Job || json.Unmarshal(r.Params, &params) != nil {
		return nil
	}
	if params.Mode != "" && params.Mode != replay.State {
		parts = append(parts, "mode "+string(params.Mode))
	}
	if params.Publish {
		parts = append(parts, "publish true")
	}
	return parts
}

// reconcileRun holds the parameters of a reconciliation.
type reconcileRun struct{ reconcile.Params }

// reconciliation reads the parameters of a reconciliation; ok is false for a run of another job.
func reconciliation(r *runs.Run) (o reconcileRun, ok bool) {
	return o, r.Job == reconcile.Job && json.Unmarshal(r.Params, &o.Params) == nil
}

// describe returns for example: objects of type customer, full, source stripe.
func (o reconcileRun) describe() string {
	parts := []string{o.subject()}
	if o.Full {
		parts = append(parts, "full list")
	}
	if source := o.Input["source"]; source != "" {
		parts = append(parts, "source "+source)
	}
	switch {
	case o.AllAccounts:
		parts = append(parts, "all accounts")
	case o.Account != "":
		parts = append(parts, "account "+o.Account)
	}
	if !o.Since.IsZero() {
		parts = append(parts, "since "+events.Instant{Time: o.Since}.String())
	}
	if !o.Until.IsZero() {
		parts = append(parts, "until "+events.Instant{Time: o.Until}.String())
	}
	if o.DryRun {
		parts = append(parts, "dry run")
	}
	return strings.Join(parts, ", ")
}

func (o reconcileRun) subject() string {
	switch {
	case o.Scope == reconcile.Object && o.Overwrite:
		return describeObject(o.Type, o.ID) + ", overwriting the local history"
	case o.Scope == reconcile.Object:
		return describeObject(o.Type, o.ID)
	case o.Scope == reconcile.Objects && o.Type != "":
		return "objects of type " + o.Type
	case o.Scope == reconcile.Objects:
		return "objects of all types"
	}
	return o.Scope
}

// unitOf names the unit that a run counts.
func unitOf(r *runs.Run) string {
	if o, ok := reconciliation(r); ok && (o.Scope == reconcile.Objects || o.Scope == reconcile.Object) {
		return "objects"
	}
	return "events"
}

// describeProcessed returns how many units a run has processed.
func describeProcessed(r *runs.Run) string {
	if n, allAccounts := r.Counts[reconcile.Accounts]; allAccounts { // such a run only creates a run for each account
		return countOf(int(n), "account")
	}
	return countOf(int(r.Counts[replay.Processed]), strings.TrimSuffix(unitOf(r), "s"))
}

// describeProgress says how far a run has read: a position in the log, or a provider's time.
func describeProgress(r *runs.Run) (label, text string) {
	switch {
	case r.Bound == 0 || r.Cursor <= 1: // the run has only started
		return "", ""
	case r.Job != reconcile.Job && r.Cursor >= r.Bound:
		return "log read", "completely"
	case r.Job != reconcile.Job:
		return "log read up to", formatEventTime(r.Cursor) + " of " + formatEventTime(r.Bound)
	}
	return "provider's events read up to", formatMicros(r.Cursor) + " of " + formatMicros(r.Bound)
}

func formatEventTime(id int64) string { return events.Instant{Time: events.Time(id)}.String() }

func formatMicros(at int64) string { return events.Instant{Time: time.UnixMicro(at)}.String() }

// describeCounts describes the counts of a run: events by outcome for most jobs.
func describeCounts(job string, counts map[string]int64) string {
	switch job {
	case retention.Job:
		return describeRetentionCounts(counts)
	case redaction.Job:
		return describeRedactionCounts(counts)
	case reconcile.Job:
		return describeReconcileCounts(counts)
	}
	parts := []string{fmt.Sprintf("%d processed", counts[replay.Processed])}
	parts = appendCounts(parts, counts, replay.Published, "published")
	for _, s := range []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale,
		versioning.Ambiguous, versioning.Ignored, versioning.Failed, versioning.Dead} {
		parts = appendCounts(parts, counts, string(s), string(s))
	}
	parts = appendCounts(parts, counts, replay.Deduplicated, "of them deduplicated", replay.EffectsReplanned,
		"effects planned again", replay.EffectsNotReplanned, "effects that could not be planned again")
	if n, swapped := counts[rebuild.Swapped]; swapped {
		parts = append(parts, fmt.Sprintf("%s replaced, %d got a higher revision, %d removed from the mirror",
			countOf(int(n), "object"), counts[rebuild.RevisionsGrown], counts[rebuild.Emptied]))
	}
	return strings.Join(parts, ", ")
}

// appendCounts appends the counts above zero, each with its text. texts are pairs of the name of a
// count and its text.
func appendCounts(parts []string, counts map[string]int64, texts ...string) []string {
	for i := 0; i+1 < len(texts); i += 2 {
		if n := counts[texts[i]]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, texts[i+1]))
		}
	}
	return parts
}

// The interval at which a watched run is read, and the interval of progress lines without a
// terminal.
const (
	watchInterval = 500 * time.Millisecond
	lineInterval  = 10 * time.Second
)

// watchRun shows the progress of a run until it ends or is paused, and then its result.
func (x *call) watchRun(run int64) error {
	w := &runWatcher{progress: newProgress(x.out, lineInterval, x.json())}
	for {
		r, err := runs.Show(x.ctx, x.pool, run)
		if err != nil {
			return err
		}
		w.print(r, time.Now())
		if r.Status.Ended() || r.Status == runs.Paused {
			w.finish()
			if err := show(x, r, nil, printRun); err != nil {
				return err
			}
			return runError(r)
		}
		select {
		case <-x.ctx.Done():
			w.finish()
			return x.ctx.Err()
		case <-time.After(watchInterval):
		}
	}
}

// runError returns an error for a run that failed, or in which events failed.
func runError(r *runs.Run) error {
	failed, dead := r.Counts[string(versioning.Failed)], r.Counts[string(versioning.Dead)]
	switch {
	case r.Status == runs.Failed:
		return fmt.Errorf("run %d failed: %s", r.ID, r.Detail)
	case r.Status == runs.Done && r.Job == replay.Job && failed+dead > 0:
		return fmt.Errorf("%d events failed and %d are dead: see postern outcomes list --run %d --status failed (or "+
			"dead); after the cause is fixed, postern retry --run %d retries them", failed, dead, r.ID, r.ID)
	// events of a rebuild that fail have failed live too
	case r.Status == runs.Done && r.Job != rebuild.Job && failed+dead > 0:
		return fmt.Errorf("%d events failed and %d are dead: see postern outcomes list --status failed (or dead)",
			failed, dead)
	}
	return nil
}

// runWatcher shows the progress of a run.
type runWatcher struct {
	progress
	status      runs.Status
	statusSince time.Time
	startCount  int64
}

func (w *runWatcher) print(r *runs.Run, now time.Time) {
	done := r.Counts[replay.Processed]
	if w.statusSince.IsZero() || r.Status != w.status {
		w.statusSince, w.startCount, w.printedAt = now, done, time.Time{}
	}
	w.status = r.Status
	if !w.due(now) {
		return
	}
	line := fmt.Sprintf("run %d %s: ", r.ID, r.Status)
	switch {
	case r.Status == runs.Queued && swapRequested(r):
		line += "swap requested"
	case r.Expected > 0:
		line += fmt.Sprintf("%d of about %d %s", done, r.Expected, unitOf(r))
	default:
		line += countOf(int(done), strings.TrimSuffix(unitOf(r), "s"))
	}
	stage := rebuild.Stage(r)
	if stage != "" {
		line += ", " + stage
	}
	switch {
	case r.Status == runs.Queued:
		line += "; waiting for a processor"
	case r.Status == runs.Paused && stage == rebuild.Staged:
		line += fmt.Sprintf("; it awaits a decision: postern rebuild swap %d or postern rebuild discard %d", r.ID, r.ID)
	case r.Status == runs.Paused:
		line += fmt.Sprintf("; postern runs resume %d continues it", r.ID)
	}
	if (r.Status == runs.Running || r.Status == runs.AwaitingApproval) && r.Detail != "" {
		line += "; " + detailLabel(r) + ": " + escapeControl(r.Detail)
	}
	if r.Status == runs.AwaitingApproval {
		line += fmt.Sprintf("; it starts after an approval: postern runs approve %d --reason TEXT", r.ID)
	}
	elapsed := now.Sub(w.statusSince).Seconds()
	switch {
	case !r.StalledSince.IsZero() && r.LeaseOwner == "":
		line += "; no process executes it since " + r.StalledSince.String()
	case !r.StalledSince.IsZero():
		line += "; no progress since " + r.StalledSince.String()
	case elapsed > 0 && done > w.startCount:
		rate := float64(done-w.startCount) / elapsed
		line += fmt.Sprintf(", %.0f/s", rate)
		if remaining := r.Expected - done; remaining > 0 {
			line += ", about " +
				time.Duration(float64(remaining)/rate*float64(time.Second)).Round(time.Second).String() + " left"
		}
	}
	w.show(line)
}
