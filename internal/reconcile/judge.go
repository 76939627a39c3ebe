package reconcile

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// kind is how an object here differs from what a list tells of it.
type kind string

// The kinds.
const (
	// equal: the same state, of no older version.
	equal kind = "equal"
	// missing: not here, or deleted here before the list was read, and there alive.
	missing kind = "missing"
	// behind: older here.
	behind kind = "behind"
	// ahead: here is what the list could not know: it is late, or the object changed after it was read. There is nothing to mend. A row that was seen last before that is no such row,
	// however great its version.
	ahead kind = "ahead"
	// open: the same version, of which the list does not tell the state, and of which no look has shown the last one here: what changed later, within what the version's clock can tell apart, may be unheard of.
	open kind = "open"
	// different: another state here at the same version, or one that is in doubt.
	different kind = "different"
	// ghost: alive here, not listed, and missing there when asked for by its name.
	ghost kind = "ghost"
)

// wrong says whether an object of this kind is to be mended.
func (k kind) wrong() bool { return k == missing || k == behind || k == different }

// item is an object as a list, or a look at it, tells of it.
type item struct {
	id string
	// at is the object's own version, where there is no look and hasAt.
	at    int64
	hasAt bool
	// told is what the list tells of an object whose address follows from what is known of it, and where is where it was asked for.
	told  []byte
	where where
	// look is the object as it was answered and in what the rule makes of it; nil where the list only names it.
	look *provider.Look
	in   versioning.Input
	// fetched: the look was made for this object alone.
	fetched bool
	// bad is why what the API tells of it cannot be used.
	bad string
	// out: it is of a part of the list that was passed over, so that it was not asked for.
	out bool
	// began: the list knows what happened before, in microseconds; of an object without a look.
	began int64
	// volatile are fields that change without a version.
	volatile []string

	kind kind
	// known is the row that it was held against, nil where there was none.
	known *known
	// exact: no two states have one version.
	exact bool
	// counted: this run had not met it before, or it was counted when it was first met.
	counted bool
	// event is the look in the log, 0 where there is none.
	event int64
}

// gone: the API was asked for the object by its name, and said that it is not there any more.
func (it *item) gone() bool {
	return it.fetched && it.bad == "" && it.look != nil && it.in.State.Deleted
}

// alive: the API was asked for the object by its name, and told it.
func (it *item) alive() bool {
	return it.fetched && it.bad == "" && it.look != nil && !it.in.State.Deleted
}

// settles says whether what is told is of the row's own version, when that was over, and later than all that is known here: nothing is in doubt once it is applied.
func (it *item) settles() bool {
	return it.known != nil && it.in.Own && it.in.Version.At == it.known.version.At && it.in.Version.Compare(it.known.version) > 0 && it.known.hi < it.in.Lo
}

// closes says whether the look at an object that is as it is here shows that its version's last state is.
func (it *item) closes() bool { return it.kind == equal && it.in.Version.Seen > 0 }

// known is what a row of the mirror says for the comparison.
type known struct {
	version   versioning.Version
	lo, hi    int64
	ambiguous bool
	deleted   bool
	hash      versioning.Hash
}

// judge says how the row, nil where there is none, differs from what the list tells.
func judge(row *known, it *item) kind {
	switch {
	case it.bad != "":
		return different
	case row == nil || row.version == versioning.NoVersion:
		return missing
	case it.look == nil:
		return judgeNumber(row, it)
	}
	in := &it.in
	same := row.hash == in.State.Hash || row.deleted && in.State.Deleted
	older := in.Own && row.version.At < in.Version.At
	switch {
	case row.deleted && !in.State.Deleted && (older || row.hi < in.Lo): // the window of a delete that came late reaches far past it
		return missing
	case row.deleted && !in.State.Deleted:
		return ahead
	case same && !older && !row.ambiguous:
		return equal
	case older, !in.Own && row.hi < in.Lo:
		return behind
	case row.ambiguous, row.version == in.Version:
		return different
	case in.Own && row.version.At > in.Version.At && row.hi < in.Lo:
		return different
	case in.Own && row.version.At == in.Version.At && row.version.Seen <= in.Lo:
		return different
	}
	return ahead
}

// judgeNumber compares own versions alone. An event tells a state of its version, and what a look has closed (seen) is the last one.
func judgeNumber(row *known, it *item) kind {
	switch {
	case row.deleted:
		return missing
	case !it.hasAt, row.ambiguous:
		return different
	case row.version.At < it.at:
		return behind
	case row.version.At > it.at && row.hi < it.began:
		return different
	case row.version.At > it.at:
		return ahead
	case row.version.Seen == 0 && !it.exact:
		return open
	}
	return equal
}
