package versioning

import (
	"bytes"
	"cmp"
	"slices"
)

// maxSet is how many members a tie set may have. A greater one keeps only its greatest state.
const maxSet = 64

// Compare orders hashes bytewise.
func (h Hash) Compare(g Hash) int { return bytes.Compare(h[:], g[:]) }

// compareStates orders states by (hash, exact).
func compareStates(s, t State) int {
	return cmp.Or(s.Hash.Compare(t.Hash), s.Exact.Compare(t.Exact))
}

// compareMembers orders members by what makes them one: the state before (none first) and the hash of the state after.
func compareMembers(m, n Member) int {
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

// merge is one member for two of the same content: the greater exact state, the hull of the windows. It commutes,
// associates and is idempotent, as the union of sets must.
func merge(m, n Member) Member {
	if n.State.Exact.Compare(m.State.Exact) > 0 {
		m.State = n.State
	}
	if m.State.JSON == nil && m.State.Exact == n.State.Exact {
		m.State = n.State
	}
	m.Lo, m.Hi, m.Look = min(m.Lo, n.Lo), max(m.Hi, n.Hi), m.Look || n.Look
	return m
}

// join adds a member to the row's set. Beyond the limit only the greatest state, the hull of all windows and whether a
// look was among them are kept: each a maximum, so that the row is the same in whatever order the members came.
func (row *Row) join(m Member) {
	if !row.Overflow {
		i, found := slices.BinarySearchFunc(row.Set, m, compareMembers)
		switch {
		case found:
			row.Set[i] = merge(row.Set[i], m)
			return
		case len(row.Set) < maxSet:
			row.Set = slices.Insert(row.Set, i, m)
			return
		}
	}
	row.Overflow = true
	for _, n := range row.Set {
		if compareStates(n.State, m.State) > 0 {
			m.State = n.State
		}
		m.Lo, m.Hi, m.Look = min(m.Lo, n.Lo), max(m.Hi, n.Hi), m.Look || n.Look
	}
	m.Before = nil
	row.Set = []Member{m}
}

// hull is the smallest window that holds the windows of all members.
func hull(set []Member) (lo, hi int64) {
	lo, hi = set[0].Lo, set[0].Hi
	for _, m := range set[1:] {
		lo, hi = min(lo, m.Lo), max(hi, m.Hi)
	}
	return lo, hi
}

// settle tells which state of a set is the last, or that this cannot be told: then it is the greatest of those that no
// change-set leaves. Of members that share the hash the greatest exact state is shown.
func settle(set []Member) (state State, ambiguous bool) {
	end, ok := chain(set)
	if !ok {
		end = greatestOpen(set)
	}
	for _, m := range set {
		if m.State.Hash == end && (state.Hash != end || m.State.Exact.Compare(state.Exact) > 0) {
			state = m.State
		}
	}
	return state, !ok
}

// chain follows the change-sets of a set. It is ok if all states are one, or if the change-sets are one walk without
// forks or circles through every state told to a single end, which is also what every member without a change-set tells.
// Anything less is no proof: a state may have been returned to.
func chain(set []Member) (end Hash, ok bool) {
	if allEqual(set) {
		return set[0].State.Hash, true
	}
	next, ok := arrows(set)
	if !ok {
		return Hash{}, false
	}
	for i, m := range set {
		last, ok := follow(next, m.State.Hash)
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

func allEqual(set []Member) bool {
	for _, m := range set[1:] {
		if m.State.Hash != set[0].State.Hash {
			return false
		}
	}
	return true
}

// arrows maps each state to the one a change-set leads from it to; not ok if two lead out of one state or into one.
func arrows(set []Member) (next map[Hash]Hash, ok bool) {
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

// follow walks the arrows from a state to the end; not ok if they go in a circle.
func follow(next map[Hash]Hash, from Hash) (end Hash, ok bool) {
	for range len(next) + 1 {
		to, more := next[from]
		if !more {
			return from, true
		}
		from = to
	}
	return Hash{}, false
}

// greatestOpen is the greatest state that no change-set leaves or, if all are left, the greatest of all.
func greatestOpen(set []Member) Hash {
	left := map[Hash]bool{}
	for _, m := range set {
		if m.Before != nil && *m.Before != m.State.Hash {
			left[*m.Before] = true
		}
	}
	var open, all Hash
	for _, m := range set {
		h := m.State.Hash
		if h.Compare(all) > 0 {
			all = h
		}
		if !left[h] && h.Compare(open) > 0 {
			open = h
		}
	}
	if open != (Hash{}) {
		return open
	}
	return all
}
