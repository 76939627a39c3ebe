package objectscan

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/versioning"
)

// kind is how a mirrored object differs from the provider's list.
type kind string

// The kinds. Their values are stored.
const (
	// equal: the mirror has the same state, of the same or a newer version.
	equal kind = "equal"
	// missing: not mirrored, or deleted in the mirror before the list was read, and alive at the
	// provider.
	missing kind = "missing"
	// mirrorOlder: the mirror has an older version.
	mirrorOlder kind = "mirror_older"
	// mirrorNewer: the mirror has a state that the list could not contain: the list lags, or the
	// object changed after it was read. No repair is needed. A row that was last observed before
	// the list was read is never mirrorNewer, whatever its version is.
	mirrorNewer kind = "mirror_newer"
	// unconfirmed: the same version, but the list has no state, and no refetch has confirmed that
	// the mirrored state is the last one of its version. A later change within the resolution of
	// the version's clock may be missing.
	unconfirmed kind = "open"
	// contentDiffers: another state at the same version, or an ambiguous row.
	contentDiffers kind = "content_differs"
	// orphan: alive in the mirror, not listed, and missing when refetched.
	orphan kind = "orphan"
)

// needsRepair reports whether an object of this kind is to be repaired.
func (k kind) needsRepair() bool { return k == missing || k == mirrorOlder || k == contentDiffers }

// item is an object as a list or a refetch shows it.
type item struct {
	id string
	// at is the object's version from the list, if there is no refetch and hasAt is set.
	at    int64
	hasAt bool
	// listed is what the list shows of an object whose URL depends on known data. location is where
	// it was refetched.
	listed   []byte
	location refetch.Location
	// refetch is the object's response, and input its form for the version rule; nil if the list
	// has the id only.
	refetch *provider.Refetch
	input   versioning.Input
	// fetchedByID: a call for this object alone returned the refetch.
	fetchedByID bool
	// problem is why the API's data cannot be used.
	problem string
	// skipped: it is in a skipped part of the list, so it was not refetched.
	skipped bool
	// listedSince is when the list began, in microseconds, for an object without a refetch. The
	// list contains all changes before it.
	listedSince int64
	// ignoredPaths are the fields that change without a new version.
	ignoredPaths []string

	kind kind
	// row is the mirrored row that it was compared with, nil for none.
	row *mirrorRow
	// uniqueVersions: no two states share a version.
	uniqueVersions bool
	// counted: this run compared it for the first time, or counted it then.
	counted bool
	// event is the refetch in the log, 0 for none.
	event int64
}

// isMissing reports whether a call for the object alone found that it no longer exists.
func (it *item) isMissing() bool {
	return it.fetchedByID && it.problem == "" && it.refetch != nil && it.input.State.Deleted
}

// isAlive reports whether a call for the object alone returned it.
func (it *item) isAlive() bool {
	return it.fetchedByID && it.problem == "" && it.refetch != nil && !it.input.State.Deleted
}

// isDecisive reports whether the refetch has the row's event time and a newer version, and began
// after the mirror's last observation of the object. Applying it removes any ambiguity.
func (it *item) isDecisive() bool {
	return it.row != nil && it.input.OwnVersion && it.input.Version.At == it.row.version.At &&
		it.input.Version.Compare(it.row.version) > 0 && it.row.hi < it.input.TimeFrom
}

// confirmsState reports whether the refetch of an equal object confirms the last state of its
// version.
func (it *item) confirmsState() bool { return it.kind == equal && it.input.Version.Seen > 0 }

// mirrorRow is the part of a mirrored row that the comparison uses.
type mirrorRow struct {
	version   versioning.Version
	lo, hi    int64
	ambiguous bool
	deleted   bool
	hash      versioning.Hash
}

// classify returns how the row, nil for none, differs from the provider's data.
func classify(row *mirrorRow, it *item) kind {
	switch {
	case it.problem != "":
		return contentDiffers
	case row == nil || row.version == versioning.NoVersion:
		return missing
	case it.refetch == nil:
		return classifyByVersion(row, it)
	}
	in := &it.input
	same := row.hash == in.State.Hash || row.deleted && in.State.Deleted
	older := in.OwnVersion && row.version.At < in.Version.At
	switch {
	// the interval of a late delete extends far beyond the delete
	case row.deleted && !in.State.Deleted && (older || row.hi < in.TimeFrom):
		return missing
	case row.deleted && !in.State.Deleted:
		return mirrorNewer
	case same && !older && !row.ambiguous:
		return equal
	case older, !in.OwnVersion && row.hi < in.TimeFrom:
		return mirrorOlder
	case row.ambiguous, row.version == in.Version:
		return contentDiffers
	case in.OwnVersion && row.version.At > in.Version.At && row.hi < in.TimeFrom:
		return contentDiffers
	case in.OwnVersion && row.version.At == in.Version.At && row.version.Seen <= in.TimeFrom:
		return contentDiffers
	}
	return mirrorNewer
}

// classifyByVersion compares object versions alone. An event shows one state of its version, not
// necessarily the last. A state that a refetch has confirmed (seen) is the last one.
func classifyByVersion(row *mirrorRow, it *item) kind {
	switch {
	case row.deleted:
		return missing
	case !it.hasAt, row.ambiguous:
		return contentDiffers
	case row.version.At < it.at:
		return mirrorOlder
	case row.version.At > it.at && row.hi < it.listedSince:
		return contentDiffers
	case row.version.At > it.at:
		return mirrorNewer
	case row.version.Seen == 0 && !it.uniqueVersions:
		return unconfirmed
	}
	return equal
}
