package config

import "time"

// APIResponse describes a response of the API that has a special meaning.
type APIResponse struct {
	// Statuses are the HTTP statuses of such a response.
	Statuses []int `yaml:"statuses,omitempty"`
	// Path is the path of a value in the body that identifies the response, e.g. error.code. Leave
	// it empty if the status is enough.
	Path string `yaml:"path,omitempty"`
	// Equals is the required value at path. Leave it empty to accept any value.
	Equals string `yaml:"equals,omitempty"`
}

// APIObject says how Postern reads the objects of one type from the API.
type APIObject struct {
	// Get is the path of the call that reads one object, relative to base_url: /v1/orders/{id}. It
	// contains {id} and, if the API needs it, {account}. A query may follow after a question mark.
	// If the path has no {account}, Postern reads only objects of the source's own account.
	Get string `yaml:"get,omitempty"`
	// Item is the path of the object in that response, e.g. data. 0 is the first element of a list.
	// Leave it empty if the response is the object. The object must have the same form as the
	// object states in the source's events.
	Item string `yaml:"item,omitempty"`
	// ID is the path of the id in the object. It must be the id that events use.
	ID string `yaml:"id,omitempty" unset:"id"`
	// Version is the value that orders the states of an object. It must be the value that orders
	// the source's events. Leave it empty if events are ordered by their time: a refetch is then
	// ordered by its start time.
	Version APIVersion `yaml:"version,omitempty"`
	// Deleted is a value in the object. It identifies a deleted object that the API still returns.
	Deleted APIValue `yaml:"deleted,omitempty"`
	// IgnoredPaths are paths in the object whose values change without a new version. Comparisons
	// of states ignore them. A path applies to each element of an array.
	IgnoredPaths []string `yaml:"ignored_paths,omitempty"`
	// List describes how the API lists the objects. Leave it out if the API cannot list them.
	// Reconciliation then does not find objects that no webhook reported.
	List APIList `yaml:"list,omitempty"`
}

// APIVersion is the version that an object carries.
type APIVersion struct {
	// Path is the path of the version in the object, e.g. updated_at.
	Path string `yaml:"path,omitempty"`
	// Unit is s, ms, rfc3339, integer (a number that grows with each change) or auto. With auto,
	// Postern recognizes the format of the time.
	Unit string `yaml:"unit,omitempty" unset:"auto"`
	// MayNotAdvance: true says that an object can change without a new version.
	MayNotAdvance bool `yaml:"may_not_advance,omitempty" unset:"false"`
}

// APIValue is a value in an object.
type APIValue struct {
	// Path is the path of the value, e.g. status.
	Path string `yaml:"path,omitempty"`
	// Equals is the required value. Leave it empty to accept any value except null, false, 0 and
	// empty values.
	Equals string `yaml:"equals,omitempty"`
}

// APIEvents describes how the API lists its events. The list holds the events of all accounts of
// the key. Key, type and account of the source's events must come from the body, because listed
// events have no headers.
type APIEvents struct {
	// Path is the path of the call, relative to base_url.
	Path string `yaml:"path,omitempty"`
	// Query are the parameters of each page, with {limit}, {cursor}, {since} and {until} as in a
	// list of objects. Both {since} and {until} are required, because Postern reads one time range
	// after the other.
	Query map[string]string `yaml:"query,omitempty"`
	// Items is the path of the list in the response, e.g. data. Leave it empty if the response is
	// the list.
	Items string `yaml:"items,omitempty"`
	// Item is the path of the event in an element of the list. The event must have the same form as
	// a webhook's body. Leave it empty if the element is the event.
	Item string `yaml:"item,omitempty"`
	// At is the event's time, to which {since} and {until} refer.
	At APIEventTime `yaml:"at,omitempty"`
	// Time is the format of {since} and {until}: rfc3339, s or ms.
	Time string `yaml:"time,omitempty" unset:"rfc3339"`
	// Limit is the maximum number of events in a page, for {limit} and next.window.
	Limit int `yaml:"limit,omitempty" validate:"omitempty,gte=1,lte=100000"`
	// Retention is how long the API lists an event. Runs do not read older events, and Postern does
	// not report older times as complete.
	Retention time.Duration `yaml:"retention,omitempty" unset:"720h" validate:"omitempty,gte=3600000000000,lte=2592000000000000"`
	// Next describes how to find the next page. Leave it out if a list always has one page.
	Next APIPaging `yaml:"next,omitempty"`
}

// APIEventTime is a time in an event.
type APIEventTime struct {
	// Path is the path of the time, e.g. created_at.
	Path string `yaml:"path,omitempty"`
	// Unit is s, ms, rfc3339 or auto. With auto, Postern recognizes the format.
	Unit string `yaml:"unit,omitempty" unset:"auto"`
}

// APIList describes how the API lists the objects of one type.
type APIList struct {
	// Path is the path of the call, relative to base_url. It may contain {account}.
	Path string `yaml:"path,omitempty"`
	// Query are the parameters of each page. Values may contain {account}, {limit}, {cursor},
	// {since} and {until}. {cursor} is the value that next finds; on the first page it has no
	// value. {since} and {until} limit the list to changes in that time range, including both ends.
	// Postern omits a parameter if one of its placeholders has no value. Include archived and
	// cancelled objects. Use an order that changes of objects do not affect: by id or by creation
	// time.
	Query map[string]string `yaml:"query,omitempty"`
	// Items is the path of the list in the response, e.g. data. Leave it empty if the response is
	// the list.
	Items string `yaml:"items,omitempty"`
	// Item is the path of the object in an element of the list. Leave it empty if the element is
	// the object.
	Item string `yaml:"item,omitempty"`
	// Partial: true says that the list returns fewer fields than get. Postern then compares id and
	// version, and fetches each object that differs.
	Partial bool `yaml:"partial,omitempty" unset:"false"`
	// Time is the format of {since} and {until}: rfc3339, s or ms.
	Time string `yaml:"time,omitempty" unset:"rfc3339"`
	// Limit is the maximum number of objects in a page, for {limit} and next.window.
	Limit int `yaml:"limit,omitempty" validate:"omitempty,gte=1,lte=100000"`
	// Lag is the maximum time after a change during which the list may not show it. Leave it unset
	// for the value of api.lag.
	Lag time.Duration `yaml:"lag,omitempty" unset:"api.lag" validate:"omitempty,lte=86400000000000"`
	// EmptyPages: true says that many empty pages may come before further objects, for example
	// because the API filters after paging. If it is false, a run fails after a hundred pages
	// without a new object.
	EmptyPages bool `yaml:"sparse,omitempty" unset:"false"`
	// Next describes how to find the next page. Leave it out if a list always has one page.
	Next APIPaging `yaml:"next,omitempty"`
}

// APIPaging describes how to find the next page, by exactly one of field, address, link, last and
// window. A page number or offset works only if the API returns it. Objects that are created or
// deleted between two pages move all later objects, so Postern reads such pages twice.
type APIPaging struct {
	// CursorPath is the path, in the response, of the next page's {cursor}, e.g. meta.next_cursor.
	// The last page has none.
	CursorPath string `yaml:"field,omitempty"`
	// AddressPath is the path, in the response, of the next page's URL, on base_url's host. The
	// last page has none.
	AddressPath string `yaml:"address,omitempty"`
	// LinkHeader: true says that the header Link carries the next page's URL with rel="next".
	LinkHeader bool `yaml:"link,omitempty" unset:"false"`
	// LastObjectPath is the path, in a page's last object, of the next page's {cursor}. It is
	// usually id. The list ends with an empty page, or when more says that it ends.
	LastObjectPath string `yaml:"last,omitempty"`
	// ByTime: true says that pages are ordered by the version, oldest first, and that the version
	// is a time. The next page then lists changes {since} the last object of this one. It requires
	// limit. A page must hold more objects than change in one second.
	ByTime bool `yaml:"window,omitempty" unset:"false"`
	// MorePath is the path, in the response, of the value that says whether another page exists,
	// e.g. has_more. Leave it empty if the API has no such value.
	MorePath string `yaml:"more,omitempty"`
}
