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

// askedFor is what a run was asked for, in words; as it is kept, where it was asked for by no words.
func askedFor(r *runs.Run) string {
	if o, ok := reconciliation(r); ok {
		return o.inWords()
	}
	var kept struct {
		Words map[string]string `json:"words"`
	}
	if json.Unmarshal(r.Asked, &kept) != nil || len(kept.Words) == 0 {
		return string(r.Asked)
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(kept.Words)) {
		all = append(all, name+" "+kept.Words[name])
	}
	return strings.Join(all, ", ")
}

// ordered is what a reconciliation was asked for.
type ordered struct{ reconcile.Order }

// reconciliation reads it; false where the run is none.
func reconciliation(r *runs.Run) (o ordered, ok bool) {
	return o, r.Job == reconcile.Job && json.Unmarshal(r.Asked, &o.Order) == nil
}

// inWords is for example: objects of type customer, in full, of stripe.
func (o ordered) inWords() string {
	parts := []string{o.what()}
	if o.Full {
		parts = append(parts, "in full")
	}
	if source := o.Words["source"]; source != "" {
		parts = append(parts, "of "+source)
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
		parts = append(parts, "as a dry run")
	}
	return strings.Join(parts, ", ")
}

func (o ordered) what() string {
	switch {
	case o.What == reconcile.Object && o.Settle:
		return object(o.Type, o.ID) + ", to win over all that was there before"
	case o.What == reconcile.Object:
		return object(o.Type, o.ID)
	case o.What == reconcile.Objects && o.Type != "":
		return "objects of type " + o.Type
	case o.What == reconcile.Objects:
		return "objects of all types"
	}
	return o.What
}

// things are what a run goes through.
func things(r *runs.Run) string {
	if o, ok := reconciliation(r); ok && (o.What == reconcile.Objects || o.What == reconcile.Object) {
		return "objects"
	}
	return "events"
}

// processed is how many of what a run has gone through, and what these are.
func processed(r *runs.Run) string {
	if n, each := r.Counts[reconcile.Accounts]; each { // it has done no more than enter a run for each
		return counted(int(n), "account")
	}
	return counted(int(r.Counts[replay.Processed]), strings.TrimSuffix(things(r), "s"))
}
