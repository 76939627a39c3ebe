package provider

import (
	"net/http"
	"time"
)

// List is how the objects of a type are listed.
type List struct {
	// ByChange: the list can be asked for what changed in a time. Else it can only be read whole, and what is kept here and not listed is looked at by itself.
	ByChange bool
	// Lag is how old a list may be: what changed so short a time before the answer may be missing from it, or be told as it was.
	Lag time.Duration
	// Sparse: the objects are found through others that may have none, so that many pages in a row may tell of nothing.
	Sparse bool
	// Rare: most of what is read for the list, such as all customers, has none of its objects. A sweep over all types reads it only where the mirror has one.
	Rare bool
	// Counted: versions are numbers that grow with each change, so that no two states have one. Of a list that tells versions alone it spares the look that shows a version's last state.
	Counted bool
	// Blind: the list of all tells versions alone, which are not known to move with every change. What changes under a version stays unseen by it.
	Blind bool
	// Several: the objects come from several lists, so that who may not read one of them must be told which.
	Several bool
}

// Listed is an object as a page tells of it.
type Listed struct {
	ObjectID string
	// Body is the object in the shape that Fetch is answered with, so that Snapshot reads it; nil where the list does not tell as much.
	Body []byte
	// At is the object's own version as in Observation, with HasAt, by which it is compared where there is no Body. Without either each one is fetched.
	At    int64
	HasAt bool
	// Known is what the list tells of it, where there is no Body and the API reads it by an address that its name does not tell: Locate takes it for the state of an
	// object that nothing else is known of.
	Known []byte
}

// ObjectLister is a provider whose API lists objects. Its methods are pure, as Provider's are.
type ObjectLister interface {
	Reader
	// Lists are the types of the account's objects that can be listed with this key, and how. None of its lists may tell of objects that the mirror keeps under
	// another account.
	Lists(src *Source, api *API, account string) map[string]List
	// ListObjects asks for a page of all objects of a type that an account has, in an order that does not depend on what changes meanwhile, or, where the list is
	// ByChange, of those that changed from since to until; both ends belong to it, and both are zero for all. An empty cursor is the first page.
	ListObjects(src *Source, api *API, account, objectType string, since, until time.Time, cursor string) Call
	// ObjectPage splits the answer to ListObjects with that cursor. next is the cursor of the following page, "" after the last.
	ObjectPage(src *Source, api *API, account, objectType, cursor string, header http.Header, body []byte) (page []Listed, next string, err error)
}

// PartLister is an ObjectLister whose lists have parts that are read one after the other, as repositories: one that cannot be read keeps the others from nothing.
type PartLister interface {
	ObjectLister
	// PartAt names the part of a type's list that a cursor is in, as a person names it, and tells whether the cursor is the part's beginning. next is the beginning of the part that
	// follows, "" behind the last.
	PartAt(api *API, objectType, cursor string) (part string, begins bool, next string)
	// PartOf names the part in which an object is listed that Locate reads with a call, "" for none.
	PartOf(api *API, call Call) string
}
