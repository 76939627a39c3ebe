package reconcile

// Tally counts what a sweep has met; each object counts once.
type Tally struct {
	// Checked were listed, or asked for by their name because they were not.
	Checked int64 `json:"checked"`
	// Equal are the same here and there.
	Equal int64 `json:"equal"`
	// Missing are there and not here, Behind are older here, Ahead are newer here than the list can know, and Different are of one version and not the same.
	Missing   int64 `json:"missing"`
	Behind    int64 `json:"behind"`
	Ahead     int64 `json:"ahead"`
	Different int64 `json:"different"`
	// Hidden, of those that were checked, are here, were not listed, and were found alive by their names: each costs a call in each sweep of all objects.
	Hidden int64 `json:"hidden"`
	// Ghosts are here and not there.
	Ghosts int64 `json:"ghosts"`
	// Mended are those that are right since, and Left those that are not.
	Mended int64 `json:"mended"`
	Left   int64 `json:"left"`
}

// plus is the sum of two.
func (t Tally) plus(u Tally) Tally {
	return Tally{t.Checked + u.Checked, t.Equal + u.Equal, t.Missing + u.Missing, t.Behind + u.Behind, t.Ahead + u.Ahead, t.Different + u.Different,
		t.Hidden + u.Hidden, t.Ghosts + u.Ghosts, t.Mended + u.Mended, t.Left + u.Left}
}

// Counts of a sweep beside Seen (all that was checked, and ghosts) and Missing.
const (
	Equal     = "equal"
	Behind    = "behind"
	Ahead     = "ahead"
	Different = "different"
	Hidden    = "hidden"
	Ghosts    = "ghosts"
	Mended    = "mended"
	Left      = "left"
	// Unlisted are types whose lists the API refuses, so that a sweep over all types has passed over them: nothing is proven of them.
	Unlisted = "unlisted"
	// Rare are types that a sweep over all types has passed over since the mirror has none of them and their lists cost much: nothing is proven of them.
	Rare = "rare"
	// Passed are the parts of lists (repositories) that could not be read, or not to their end; one that is in the lists of several types counts for each. Nothing is proven of those types.
	Passed = "passed_over"
	// SkewSeconds is by how much the API's clock and the database's have differed, rounded up, where that is more than is tolerated.
	SkewSeconds = "skew_seconds"
)

// counts are as the ledger has them.
func (t Tally) counts() map[string]int64 {
	return map[string]int64{Seen: t.Checked + t.Ghosts, Equal: t.Equal, Missing: t.Missing, Behind: t.Behind, Ahead: t.Ahead, Different: t.Different, Hidden: t.Hidden, Ghosts: t.Ghosts,
		Mended: t.Mended, Left: t.Left}
}
