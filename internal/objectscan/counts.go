package objectscan

// ScanCounts counts the objects of a scan; each object counts once.
type ScanCounts struct {
	// Checked were listed, or refetched because they were not listed.
	Checked int64 `json:"checked"`
	// Equal are equal in the mirror and at the provider.
	Equal int64 `json:"equal"`
	// Missing are not in the mirror. MirrorOlder are older in the mirror. MirrorNewer are newer in
	// the mirror than the list can show. ContentDiffers have the same version and another state.
	Missing        int64 `json:"missing"`
	MirrorOlder    int64 `json:"mirror_older"`
	MirrorNewer    int64 `json:"mirror_newer"`
	ContentDiffers int64 `json:"content_differs"`
	// NotListed are those checked objects that the list does not show, and a refetch found alive.
	// Each of them costs a call in each full scan.
	NotListed int64 `json:"not_listed"`
	// Orphans are mirrored and missing at the provider.
	Orphans int64 `json:"orphans"`
	// Repaired differed and do not differ any more. Unrepaired still differ.
	Repaired   int64 `json:"repaired"`
	Unrepaired int64 `json:"unrepaired"`
}

// add returns the sum of two.
func (t ScanCounts) add(u ScanCounts) ScanCounts {
	return ScanCounts{t.Checked + u.Checked, t.Equal + u.Equal, t.Missing + u.Missing, t.MirrorOlder + u.MirrorOlder,
		t.MirrorNewer + u.MirrorNewer, t.ContentDiffers + u.ContentDiffers,
		t.NotListed + u.NotListed, t.Orphans + u.Orphans, t.Repaired + u.Repaired, t.Unrepaired + u.Unrepaired}
}

// Counts of a scan.
const (
	// processed are all checked objects and orphans.
	processed      = "processed"
	Missing        = "missing"
	Equal          = "equal"
	MirrorOlder    = "mirror_older"
	MirrorNewer    = "mirror_newer"
	ContentDiffers = "content_differs"
	NotListed      = "not_listed"
	Orphans        = "orphans"
	Repaired       = "repaired"
	Unrepaired     = "unrepaired"
	// NotListable are types whose lists the API rejects, so that a scan of all types skips them.
	// Their watermarks do not advance.
	NotListable = "not_listable"
	// SkippedTypes are types that a scan of all types skips, because the mirror has none of them
	// and their lists are expensive. Their watermarks do not advance.
	SkippedTypes = "skipped"
	// SkippedParts are the parts of lists (repositories) that could not be read, or not to their
	// end. A part of several lists counts for each. The watermarks of those types do not advance.
	SkippedParts = "skipped_parts"
)

// asCounts returns the counts by their names in the run ledger.
func (t ScanCounts) asCounts() map[string]int64 {
	return map[string]int64{processed: t.Checked + t.Orphans, Equal: t.Equal, Missing: t.Missing,
		MirrorOlder: t.MirrorOlder,
		MirrorNewer: t.MirrorNewer, ContentDiffers: t.ContentDiffers, NotListed: t.NotListed, Orphans: t.Orphans,
		Repaired: t.Repaired, Unrepaired: t.Unrepaired}
}
