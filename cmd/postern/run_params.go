package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
)

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
