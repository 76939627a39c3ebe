package versioning

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Gap is a way from one state of an object to another that no event has told of, though a change-set begins at its end: an event is late or lost, or clocks are skewed.
type Gap struct{ From, To Hash }

// Gaps are those of an object. They are advice: whether to look at it is all that depends on them, and no row does. nil: none.
type Gaps []Gap

// maxGaps is how many gaps of an object are kept; with that many it is looked at in any case.
const maxGaps = 8

// Fit is how an input met a row: the row before, and the input.
type Fit struct {
	row, before, state Hash
	order              int
	known, doubted     bool
	look               bool
}

// FitOf is how an input met a row that was so before, and got such a status. ok says that it tells anything of gaps: a change-set, or a look that was taken.
func FitOf(before *Row, in *Input, status Status) (f Fit, ok bool) {
	if in.Look {
		return Fit{look: true}, status == Applied || status == Unchanged
	}
	if in.Partial != "" || in.Before == nil || *in.Before == in.State.Hash || status == Dead || in.Received < before.Settled {
		return f, false
	}
	order := in.Version.Compare(before.Version)
	if status == Stale && order >= 0 { // from before an operator's overwrite
		return f, false
	}
	return Fit{row: before.State.Hash, before: *in.Before, state: in.State.Hash, order: order, known: before.Version != NoVersion,
		doubted: before.Ambiguous || before.LookAfter != 0 || before.Version.Final}, true
}

// Opens says whether the input may open a gap; any other can only make those that are there smaller.
func (f *Fit) Opens() bool {
	return !f.look && f.known && !f.doubted && (f.order > 0) == (f.before != f.row) && f.order != 0
}

// Looked says whether the input was a look, which closes all gaps.
func (f *Fit) Looked() bool { return f.look }

// Matters says whether gaps may be others after the input, if there are any.
func (f *Fit) Matters() bool { return f.look || f.order <= 0 || f.Opens() }

// After are the gaps after an input. A newer change-set that does not begin at the state of the row opens one, and one between the ends of a gap makes it smaller. An older
// one that fills none and yet begins at the state of the row is in the wrong place itself: its own change is one that the row has not seen.
func (g Gaps) After(f *Fit) Gaps {
	if f.look {
		return nil
	}
	i := slices.IndexFunc(g, func(gap Gap) bool { return !gap.late() && (gap.To == f.state || gap.From == f.before) })
	if i >= 0 && f.order <= 0 { // what is newer than the row lies behind all gaps
		g = slices.Clone(g)
		switch gap := &g[i]; {
		case gap.To == f.state:
			gap.To = f.before
		default:
			gap.From = f.state
		}
		if g[i].From == g[i].To {
			g = slices.Delete(g, i, i+1)
		}
		return g.orNone()
	}
	if f.Opens() && len(g) < maxGaps {
		gap := Gap{From: f.row, To: f.before}
		if f.order < 0 {
			gap = Gap{From: f.state, To: f.row}
		}
		if !slices.Contains(g, gap) {
			g = append(slices.Clip(g), gap)
		}
	}
	return g.orNone()
}

// Late are the gaps after an event that came late has taken the object from a state: its end is known to nobody, so that nothing but a look closes it. That the state returns does not, since another one may
// have been proven meanwhile.
func (g Gaps) Late(from Hash) Gaps {
	if g.HasLate() {
		return g
	}
	return append(slices.Clip(g), Gap{From: from})
}

// HasLate says whether one of them is of an event that came late.
func (g Gaps) HasLate() bool { return slices.ContainsFunc(g, Gap.late) }

func (g Gap) late() bool { return g.To == Hash{} }

func (g Gaps) orNone() Gaps {
	if len(g) == 0 {
		return nil
	}
	return g
}

// Encode writes gaps for the column of hints; nil for none.
func (g Gaps) Encode() ([]byte, error) {
	if len(g) == 0 {
		return nil, nil
	}
	pairs := make([][2][]byte, len(g))
	for i := range g {
		pairs[i] = [2][]byte{g[i].From[:], g[i].To[:]}
	}
	return json.Marshal(pairs)
}

// DecodeGaps reads what Encode wrote.
func DecodeGaps(text []byte) (Gaps, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var pairs [][2][]byte
	if err := json.Unmarshal(text, &pairs); err != nil {
		return nil, fmt.Errorf("decode gaps: %w", err)
	}
	g := make(Gaps, len(pairs))
	for i, pair := range pairs {
		if err := loadHash(&g[i].From, pair[0]); err != nil {
			return nil, fmt.Errorf("decode gaps: %w", err)
		}
		if err := loadHash(&g[i].To, pair[1]); err != nil {
			return nil, fmt.Errorf("decode gaps: %w", err)
		}
	}
	return g, nil
}
