package versioning

import (
	"bytes"
	"cmp"
	"slices"
)

// maxTiedStates is how many tied states a row may have. A row with more keeps only the greatest.
const maxTiedStates = 64

// Compare orders hashes bytewise.
func (h Hash) Compare(g Hash) int { return bytes.Compare(h[:], g[:]) }

// compareStates orders states by hash, then by exact hash.
func compareStates(s, t State) int {
	return cmp.Or(s.Hash.Compare(t.Hash), s.ExactHash.Compare(t.ExactHash))
}

// compareTied orders tied states by the two values that identify one: the hash of the state before
// (none comes first) and the hash of the state after.
func compareTied(m, n TiedState) int {
	switch {
	case m.Before == nil && n.Before == nil:
	case m.Before == nil:
		return -1
	case n.Before == nil:
		return 1
	default:
		if c := m.Before.Compare(*n.Before); c != 0 {
			return c
		}
	}
	return m.State.Hash.Compare(n.State.Hash)
}

// mergeTied combines two tied states of the same content: the greater exact state and both time
// ranges. It is commutative, associative and idempotent, as the union of sets must be.
func mergeTied(m, n TiedState) TiedState {
	if n.State.ExactHash.Compare(m.State.ExactHash) > 0 {
		m.State = n.State
	}
	if m.State.JSON == nil && m.State.ExactHash == n.State.ExactHash {
		m.State = n.State
	}
	m.TimeFrom, m.TimeTo = min(m.TimeFrom, n.TimeFrom), max(m.TimeTo, n.TimeTo)
	m.FromRefetch = m.FromRefetch || n.FromRefetch
	return m
}

// join adds a tied state to the row. Above the limit the row keeps only the greatest state, the
// enclosing time range, and whether a refetch was among them. Each of these is a maximum, so the
// order of arrival does not matter.
func (row *Row) join(m TiedState) {
	if !row.Overflow {
		i, found := slices.BinarySearchFunc(row.TiedStates, m, compareTied)
		switch {
		case found:
			row.TiedStates[i] = mergeTied(row.TiedStates[i], m)
			return
		case len(row.TiedStates) < maxTiedStates:
			row.TiedStates = slices.Insert(row.TiedStates, i, m)
			return
		}
	}
	row.Overflow = true
	for _, n := range row.TiedStates {
		if compareStates(n.State, m.State) > 0 {
			m.State = n.State
		}
		m.TimeFrom, m.TimeTo = min(m.TimeFrom, n.TimeFrom), max(m.TimeTo, n.TimeTo)
		m.FromRefetch = m.FromRefetch || n.FromRefetch
	}
	m.Before = nil
	row.TiedStates = []TiedState{m}
}

// hull returns the smallest time range that contains those of all tied states.
func hull(set []TiedState) (lo, hi int64) {
	lo, hi = set[0].TimeFrom, set[0].TimeTo
	for _, m := range set[1:] {
		lo, hi = min(lo, m.TimeFrom), max(hi, m.TimeTo)
	}
	return lo, hi
}

// resolveTiedStates returns the last of the tied states. If that is ambiguous, it returns the
// greatest state from which no change-set leads to another. Among states with the same hash it
// returns the one with the greatest exact hash.
func resolveTiedStates(set []TiedState) (state State, ambiguous bool) {
	end, ok := chainEnd(set)
	if !ok {
		end = greatestEnd(set)
	}
	for _, m := range set {
		if m.State.Hash == end && (state.Hash != end || m.State.ExactHash.Compare(state.ExactHash) > 0) {
			state = m.State
		}
	}
	return state, !ok
}

// chainEnd follows the change-sets of the tied states. ok means that all states are equal, or that
// the change-sets form one path without forks or cycles. That path must pass every state and lead
// to a single end, and every event without a change-set must have that end as its state. Otherwise
// the object may have returned to an earlier state, so the end proves nothing.
func chainEnd(set []TiedState) (end Hash, ok bool) {
	if allEqual(set) {
		return set[0].State.Hash, true
	}
	next, ok := buildTransitions(set)
	if !ok {
		return Hash{}, false
	}
	for i, m := range set {
		last, ok := followTransitions(next, m.State.Hash)
		if !ok || i > 0 && last != end {
			return Hash{}, false
		}
		end = last
	}
	for _, m := range set {
		if m.Before == nil && m.State.Hash != end {
			return Hash{}, false
		}
	}
	return end, true
}

func allEqual(set []TiedState) bool {
	for _, m := range set[1:] {
		if m.State.Hash != set[0].State.Hash {
			return false
		}
	}
	return true
}

// buildTransitions maps each state to the state that a change-set leads to. ok is false when two
// different change-sets begin or end at one state.
func buildTransitions(set []TiedState) (next map[Hash]Hash, ok bool) {
	next, previous := map[Hash]Hash{}, map[Hash]Hash{}
	for _, m := range set {
		if m.Before == nil || *m.Before == m.State.Hash {
			continue
		}
		from, to := *m.Before, m.State.Hash
		if other, seen := next[from]; seen && other != to {
			return nil, false
		}
		if other, seen := previous[to]; seen && other != from {
			return nil, false
		}
		next[from], previous[to] = to, from
	}
	return next, true
}

// followTransitions follows the change-sets from a state to the end. ok is false for a cycle.
func followTransitions(next map[Hash]Hash, from Hash) (end Hash, ok bool) {
	for range len(next) + 1 {
		to, more := next[from]
		if !more {
			return from, true
		}
		from = to
	}
	return Hash{}, false
}

// greatestEnd returns the greatest state from which no change-set leads to another. If there is no
// such state, it returns the greatest of all.
func greatestEnd(set []TiedState) Hash {
	hasNext := map[Hash]bool{}
	for _, m := range set {
		if m.Before != nil && *m.Before != m.State.Hash {
			hasNext[*m.Before] = true
		}
	}
	var end, all Hash
	for _, m := range set {
		h := m.State.Hash
		if h.Compare(all) > 0 {
			all = h
		}
		if !hasNext[h] && h.Compare(end) > 0 {
			end = h
		}
	}
	if end != (Hash{}) {
		return end
	}
	return all
}
