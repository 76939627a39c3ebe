package versioning

// Same says whether two rows are the same in everything that is stored. The JSON of a state is not compared: its exact hash stands for it.
func (row *Row) Same(other *Row) bool {
	if row.Version != other.Version || row.Overflow != other.Overflow || row.Ambiguous != other.Ambiguous || row.Lo != other.Lo || row.Hi != other.Hi ||
		row.LookAfter != other.LookAfter || row.Settled != other.Settled || row.OverwriteSeen != other.OverwriteSeen || !row.State.same(&other.State) {
		return false
	}
	return sameSet(row.Set, other.Set)
}

func sameSet(a, b []Member) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].same(&b[i]) {
			return false
		}
	}
	return true
}

func (s *State) same(other *State) bool {
	return s.Exact == other.Exact && s.Hash == other.Hash && s.Deleted == other.Deleted && s.Repaired == other.Repaired
}

func (m *Member) same(other *Member) bool {
	if (m.Before == nil) != (other.Before == nil) || m.Before != nil && *m.Before != *other.Before {
		return false
	}
	return m.Lo == other.Lo && m.Hi == other.Hi && m.Look == other.Look && m.State.same(&other.State)
}
