package provider

import (
	"net/http"
	"time"
)

// List says how the objects of a type are listed.
type List struct {
	// ByChange means that the list can be limited to the objects that changed in a time range.
	// Otherwise it can only be read completely, and each mirrored object that it does not show is
	// refetched separately.
	ByChange bool
	// Lag is how old a list may be. A change within this time before the response may be missing
	// from it.
	Lag time.Duration
	// Sparse means that the list also walks objects of other types, so many pages in a row may be
	// empty.
	Sparse bool
	// OnlyIfMirrored means that the list walks many other objects, most of which have no object of
	// the type. A scan of all types reads such a list only if the mirror has an object of the type.
	OnlyIfMirrored bool
	// CountsChanges means that versions are numbers that grow with each change, so that no two
	// states share a version. If such a list contains versions only, an equal version proves an
	// equal state, and the object needs no refetch.
	CountsChanges bool
	// VersionsOnly means that the complete list contains versions only, and that they may not
	// advance with every change. A change without a new version is not detected.
	VersionsOnly bool
	// SeveralLists means that the objects come from several lists, so an error must say which list
	// the key may not read.
	SeveralLists bool
}

// ListedObject is an object on a page of a list.
type ListedObject struct {
	ObjectID string
	// Body is the object in the format of the response to Fetch, so that Snapshot reads it. It is
	// nil if the list does not contain the whole object.
	Body []byte
	// At is the object's own version as in Observation, with HasAt. It is compared if there is no
	// Body. An object without either is fetched.
	At    int64
	HasAt bool
	// LocateState is the list's part of an object without Body, which the API reads by an address
	// that the name does not give. Locate uses it as the state if nothing else is known of the
	// object.
	LocateState []byte
}

// ObjectLister is a provider whose API lists objects. Its methods are pure, as those of Provider.
type ObjectLister interface {
	Reader
	// Lists returns the types of the account's objects that can be listed with this key, and how.
	// None of its lists may contain objects that the mirror keeps under another account.
	Lists(src *Source, api *API, account string) map[string]List
	// ListObjects returns the call for a page of all objects of a type that an account has, in an
	// order that changes do not affect. If the list is ByChange, it can be limited to the objects
	// that changed from since to until. Both ends are included, and both are zero for all objects.
	// An empty cursor means the first page.
	ListObjects(src *Source, api *API, account, objectType string, since, until time.Time, cursor string) Call
	// ObjectPage splits the response to ListObjects with that cursor. next is the cursor of the
	// next page, or "" after the last.
	ObjectPage(src *Source, api *API, account, objectType, cursor string, header http.Header,
		body []byte) (page []ListedObject, next string, err error)
}

// PartLister is an ObjectLister whose lists have parts that are read one after the other, such as
// repositories. A part that cannot be read does not stop the others.
type PartLister interface {
	ObjectLister
	// PartAt returns the name of the part that a cursor is in, as operators write it, and whether
	// the cursor is the start of the part. next is the cursor of the next part, or "" after the
	// last.
	PartAt(api *API, objectType, cursor string) (part string, begins bool, next string)
	// PartOf returns the name of the part that lists the object which a call of Locate reads, or
	// "".
	PartOf(api *API, call Call) string
}
