package verify

import (
	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/versioning"
)

// differences are the parts in which two rows of one object differ. Their states are compared as JSON too, whatever their hashes say.
func differences(have, made *versioning.Row) (what []string) {
	for _, part := range []struct {
		name    string
		differs bool
	}{
		{"version", have.Version != made.Version},
		{"deleted", have.State.Deleted != made.State.Deleted},
		{"ambiguous", have.Ambiguous != made.Ambiguous},
		{"settled", have.Settled != made.Settled},
		{"windows", have.Lo != made.Lo || have.Hi != made.Hi},
		{"state", !sameJSON(have.State.JSON, made.State.JSON)},
		{"hash of the state", have.State.Exact != made.State.Exact || have.State.Hash != made.State.Hash || have.State.Repaired != made.State.Repaired},
		{"states of its version", !sameSets(have, made)},
	} {
		if part.differs {
			what = append(what, part.name)
		}
	}
	return what
}

// sameSets compares all that is stored of a version's contents.
func sameSets(have, made *versioning.Row) bool {
	a, b := *have, *made
	// What is compared by itself, and when a look is owed, is none of it.
	b.Version, b.State, b.Ambiguous, b.Settled, b.Lo, b.Hi, b.LookAfter = a.Version, a.State, a.Ambiguous, a.Settled, a.Lo, a.Hi, a.LookAfter
	if !a.Same(&b) {
		return false
	}
	for i := range a.Set {
		if x, y := a.Set[i].State.JSON, b.Set[i].State.JSON; x != nil && y != nil && !sameJSON(x, y) {
			return false
		}
	}
	return true
}

// sameJSON compares texts by what they say; nil is null.
func sameJSON(a, b []byte) bool {
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
