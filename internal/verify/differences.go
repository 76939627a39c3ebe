package verify

import (
	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/versioning"
)

// objectDifferences returns the parts in which two rows of one object differ. It also compares
// their states as JSON, whatever their hashes are.
func objectDifferences(stored, computed *versioning.Row) (what []string) {
	for _, part := range []struct {
		name    string
		differs bool
	}{
		{"version", stored.Version != computed.Version},
		{"deleted", stored.State.Deleted != computed.State.Deleted},
		{"ambiguous", stored.Ambiguous != computed.Ambiguous},
		{"time of the overwrite", stored.OverwrittenAt != computed.OverwrittenAt},
		{"observed times", stored.TimeFrom != computed.TimeFrom || stored.TimeTo != computed.TimeTo},
		{"state", !equalJSON(stored.State.JSON, computed.State.JSON)},
		{"hash of the state", stored.State.ExactHash != computed.State.ExactHash ||
			stored.State.Hash != computed.State.Hash ||
			stored.State.Sanitized != computed.State.Sanitized},
		{"tied states", !equalVersionStates(stored, computed)},
	} {
		if part.differs {
			what = append(what, part.name)
		}
	}
	return what
}

// equalVersionStates compares everything that is stored about the contents of a version.
func equalVersionStates(stored, computed *versioning.Row) bool {
	a, b := *stored, *computed
	// Exclude the parts that are compared separately, and the time of a pending refetch.
	b.Version, b.State, b.Ambiguous, b.OverwrittenAt, b.TimeFrom, b.TimeTo, b.RefetchAfter = a.Version, a.State,
		a.Ambiguous, a.OverwrittenAt, a.TimeFrom, a.TimeTo, a.RefetchAfter
	if !a.Equal(&b) {
		return false
	}
	for i := range a.TiedStates {
		if x, y := a.TiedStates[i].State.JSON, b.TiedStates[i].State.JSON; x != nil && y != nil && !equalJSON(x, y) {
			return false
		}
	}
	return true
}

// equalJSON compares the content of two JSON texts; nil is null.
func equalJSON(a, b []byte) bool {
	x, err := canonical.Parse(orNull(a))
	if err != nil {
		return false
	}
	defer x.Release()
	y, err := canonical.Parse(orNull(b))
	if err != nil {
		return false
	}
	defer y.Release()
	return x.Sum(canonical.Options{}) == y.Sum(canonical.Options{})
}

func orNull(text []byte) []byte {
	if len(text) == 0 {
		return []byte("null")
	}
	return text
}
