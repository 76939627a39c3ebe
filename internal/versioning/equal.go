package versioning

// Equal reports whether two rows have the same stored values. It does not compare the JSON of
// states, because the exact hash covers it.
func (row *Row) Equal(other *Row) bool {
	if row.Version != other.Version || row.Overflow != other.Overflow || row.Ambiguous != other.Ambiguous ||
		row.TimeFrom != other.TimeFrom || row.TimeTo != other.TimeTo || row.RefetchAfter != other.RefetchAfter ||
		row.OverwrittenAt != other.OverwrittenAt || row.OverwriteBegan != other.OverwriteBegan ||
		!row.State.equal(&other.State) {
		return false
	}
	return equalTied(row.TiedStates, other.TiedStates)
}

func equalTied(a, b []TiedState) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].equal(&b[i]) {
			return false
		}
	}
	return true
}

func (s *State) equal(other *State) bool {
	return s.ExactHash == other.ExactHash && s.Hash == other.Hash && s.Deleted == other.Deleted &&
		s.Sanitized == other.Sanitized
}

func (m *TiedState) equal(other *TiedState) bool {
	if (m.Before == nil) != (other.Before == nil) || m.Before != nil && *m.Before != *other.Before {
		return false
	}
	return m.TimeFrom == other.TimeFrom && m.TimeTo == other.TimeTo && m.FromRefetch == other.FromRefetch &&
		m.State.equal(&other.State)
}
