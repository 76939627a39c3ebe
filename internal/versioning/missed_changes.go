package versioning

import (
	"encoding/json"
	"fmt"
	"slices"
)

// MissedChange is a change of an object from one state to another that no received event describes,
// although a later change-set begins at the second state. An event is late or lost, or clocks
// differ.
type MissedChange struct{ From, To Hash }

// MissedChanges are the missed changes of one object. They only decide whether to refetch the
// object, and never change its row. Nil means none.
type MissedChanges []MissedChange

// maxMissedChanges is how many missed changes are stored for one object. An object with that many
// is refetched in any case.
const maxMissedChanges = 8

// ChangeFit records how an input relates to the row that it was applied to.
type ChangeFit struct {
	rowState, beforeState, state Hash
	order                        int
	rowHasVersion, uncertain     bool
	isRefetch                    bool
}

// FitChange compares an input with the row before it was applied; status is the result of applying
// it. ok is false for an input that gives no information about missed changes. Only a change-set,
// or a refetch that was applied, gives some.
func FitChange(before *Row, in *Input, status Status) (f ChangeFit, ok bool) {
	if in.IsRefetch {
		return ChangeFit{isRefetch: true}, status == Applied || status == Unchanged
	}
	if in.Partial != "" || in.Before == nil || *in.Before == in.State.Hash || status == Dead ||
		in.Received < before.OverwrittenAt {
		return f, false
	}
	order := in.Version.Compare(before.Version)
	if status == Stale && order >= 0 { // older than an operator's overwrite
		return f, false
	}
	return ChangeFit{rowState: before.State.Hash, beforeState: *in.Before, state: in.State.Hash, order: order,
		rowHasVersion: before.Version != NoVersion,
		uncertain:     before.Ambiguous || before.RefetchAfter != 0 || before.Version.Final}, true
}

// RevealsMissedChange reports whether the input may add a missed change. Any other input can only
// shorten or close existing ones.
func (f *ChangeFit) RevealsMissedChange() bool {
	return !f.isRefetch && f.rowHasVersion && !f.uncertain && (f.order > 0) == (f.beforeState != f.rowState) &&
		f.order != 0
}

// IsRefetch reports whether the input was a refetch, which closes all missed changes.
func (f *ChangeFit) IsRefetch() bool { return f.isRefetch }

// MayChangeMissed reports whether the input can change a list of missed changes that is not empty.
func (f *ChangeFit) MayChangeMissed() bool {
	return f.isRefetch || f.order <= 0 || f.RevealsMissedChange()
}

// Update returns the missed changes after an input:
//
//   - A change-set that is newer than the row, and does not begin at the row's state, adds one.
//   - A change-set that is not newer, and begins or ends where a missed change does, shortens it.
//   - An older change-set that shortens none, but begins at the row's state, adds one: no event has
//     described the change back to that state.
func (g MissedChanges) Update(f *ChangeFit) MissedChanges {
	if f.isRefetch {
		return nil
	}
	i := slices.IndexFunc(g, func(c MissedChange) bool {
		return !c.endUnknown() && (c.To == f.state || c.From == f.beforeState)
	})
	if i >= 0 && f.order <= 0 { // a change newer than the row comes after all missed changes
		g = slices.Clone(g)
		switch missed := &g[i]; {
		case missed.To == f.state:
			missed.To = f.beforeState
		default:
			missed.From = f.state
		}
		if g[i].From == g[i].To {
			g = slices.Delete(g, i, i+1)
		}
		return g.nilIfEmpty()
	}
	if f.RevealsMissedChange() && len(g) < maxMissedChanges {
		missed := MissedChange{From: f.rowState, To: f.beforeState}
		if f.order < 0 {
			missed = MissedChange{From: f.state, To: f.rowState}
		}
		if !slices.Contains(g, missed) {
			g = append(slices.Clip(g), missed)
		}
	}
	return g.nilIfEmpty()
}

// WithLateEvent adds the missed change that follows a late event. from is the object's state before
// the late event. The end of the missed change is unknown, so only a refetch closes it. An event
// that returns to the state from does not close it, because another state may have been confirmed
// since.
func (g MissedChanges) WithLateEvent(from Hash) MissedChanges {
	if g.HasLateEvent() {
		return g
	}
	return append(slices.Clip(g), MissedChange{From: from})
}

// HasLateEvent reports whether one of the missed changes follows a late event.
func (g MissedChanges) HasLateEvent() bool { return slices.ContainsFunc(g, MissedChange.endUnknown) }

func (g MissedChange) endUnknown() bool { return g.To == Hash{} }

func (g MissedChanges) nilIfEmpty() MissedChanges {
	if len(g) == 0 {
		return nil
	}
	return g
}

// Encode returns the missed changes as the column of the refetch queue stores them; nil for none.
func (g MissedChanges) Encode() ([]byte, error) {
	if len(g) == 0 {
		return nil, nil
	}
	pairs := make([][2][]byte, len(g))
	for i := range g {
		pairs[i] = [2][]byte{g[i].From[:], g[i].To[:]}
	}
	return json.Marshal(pairs)
}

// DecodeMissedChanges reads the output of Encode.
func DecodeMissedChanges(text []byte) (MissedChanges, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var pairs [][2][]byte
	if err := json.Unmarshal(text, &pairs); err != nil {
		return nil, fmt.Errorf("decode missed changes: %w", err)
	}
	g := make(MissedChanges, len(pairs))
	for i, pair := range pairs {
		if err := decodeHash(&g[i].From, pair[0]); err != nil {
			return nil, fmt.Errorf("decode missed changes: %w", err)
		}
		if err := decodeHash(&g[i].To, pair[1]); err != nil {
			return nil, fmt.Errorf("decode missed changes: %w", err)
		}
	}
	return g, nil
}
