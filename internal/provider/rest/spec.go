package rest

import (
	"cmp"
	"maps"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

// Spec describes an API. It is a part of a source's section api.
type Spec struct {
	// Header is the header that carries the key, for an API that objects describes. Write name and
	// value, with {key} in the value. Use {key_base64} for 'Authorization: Basic {key_base64}' and
	// a key of the form user:password.
	Header Template `yaml:"header,omitempty" unset:"Authorization: Bearer {key}"`
	// Headers are additional headers of each call, e.g. Api-Version: '{version}'. Commands print
	// them, so put no secret here.
	Headers map[string]Template `yaml:"headers,omitempty"`
	// KeyCheck is the path of a call that succeeds with every valid key, e.g. /v1/me. It may
	// contain {account}. Postern treats an object as missing only after this call succeeded.
	KeyCheck Request `yaml:"control,omitempty"`
	// Missing describes the response for an object that does not exist. Leave it unset if the
	// response has status 404 or 410.
	Missing ResponseMatch `yaml:"missing,omitempty"`
	// Expired describes the response for a {cursor} that is no longer valid. Postern then starts
	// again from the first page. Leave it unset if cursors do not expire.
	Expired ResponseMatch `yaml:"expired,omitempty"`
	// Lag is the maximum age of a state that the API returns, for example from a replica. If the
	// value is too small, an old state can overwrite a newer one.
	Lag time.Duration `yaml:"lag,omitempty" unset:"1s" validate:"omitempty,gte=1000,lte=3600000000000"`
	// Events describes how the API lists its events. They must have the same form as in the
	// source's webhooks. Leave it out if the API lists no events: reconciliation then compares
	// objects only.
	Events *Events `yaml:"events,omitempty"`
	// Objects describes an API that Postern does not know: how to read and list objects, by type. A
	// type has the name that the source's events use. The API must respond with JSON and send the
	// header Date. Paths are dotted, as in events and objects of the source.
	Objects map[string]*Type `yaml:"objects,omitempty" validate:"dive,required"`
}

// ResponseMatch describes a response of the API that has a special meaning.
type ResponseMatch struct {
	// Statuses are the HTTP statuses of such a response.
	Statuses []int `yaml:"statuses,omitempty"`
	// Path is the path of a value in the body that identifies the response, e.g. error.code. Leave
	// it empty if the status is enough.
	Path string `yaml:"path,omitempty" path:"true"`
	// Equals is the required value at path. Leave it empty to accept any value.
	Equals string `yaml:"equals,omitempty"`
}

// Condition is a value in an object. The zero Condition is never true.
type Condition struct {
	// Path is the path of the value, e.g. status.
	Path string `yaml:"path,omitempty" path:"true"`
	// Equals is the required value. Leave it empty to accept any value except null, false, 0 and
	// empty values.
	Equals string `yaml:"equals,omitempty"`
}

// Type says how Postern reads the objects of one type from the API.
type Type struct {
	// Get is the path of the call that reads one object, relative to base_url: /v1/orders/{id}. It
	// contains {id} and, if the API needs it, {account}. A query may follow after a question mark.
	// If the path has no {account}, Postern reads only objects of the source's own account.
	Get Request `yaml:"get,omitempty"`
	// Item is the path of the object in that response, e.g. data. 0 is the first element of a list.
	// Leave it empty if the response is the object. The object must have the same form as the
	// object states in the source's events.
	Item string `yaml:"item,omitempty" path:"true"`
	// ID is the path of the id in the object. It must be the id that events use.
	ID string `yaml:"id,omitempty" unset:"id" path:"true"`
	// Version is the value that orders the states of an object. It must be the value that orders
	// the source's events. Leave it empty if events are ordered by their time: a refetch is then
	// ordered by its start time.
	Version *Version `yaml:"version,omitempty"`
	// Deleted is a value in the object. It identifies a deleted object that the API still returns.
	Deleted Condition `yaml:"deleted,omitempty"`
	// IgnoredPaths are paths in the object whose values change without a new version. Comparisons
	// of states ignore them. A path applies to each element of an array.
	IgnoredPaths []string `yaml:"ignored_paths,omitempty"`
	// List describes how the API lists the objects. Leave it out if the API cannot list them.
	// Reconciliation then does not find objects that no webhook reported.
	List *List `yaml:"list,omitempty"`
}

// Version is the version that an object carries.
type Version struct {
	// Path is the path of the version in the object, e.g. updated_at.
	Path string `yaml:"path,omitempty" path:"true"`
	// Unit is s, ms, rfc3339, integer (a number that grows with each change) or auto. With auto,
	// Postern recognizes the format of the time.
	Unit declared.Unit `yaml:"unit,omitempty" unset:"auto" words:"auto s ms rfc3339 integer"`
	// MayNotAdvance: true says that an object can change without a new version.
	MayNotAdvance bool `yaml:"may_not_advance,omitempty" unset:"false"`
}

// Page describes how to request and read a page of a list.
type Page struct {
	// Path is the path of the call, relative to base_url. For objects, it may contain {account}.
	Path Request `yaml:"path,omitempty"`
	// Query are the parameters of each page. Values may contain {limit}, {cursor}, {since} and
	// {until}, and for objects {account}. {cursor} is the value that next finds; on the first page
	// it has no value. {since} and {until} limit the list to changes in that time range, including
	// both ends. Events require both, because Postern reads one time range after the other. Postern
	// omits a parameter if one of its placeholders has no value. Include archived and cancelled
	// objects. Use an order that changes of objects do not affect: by id or by creation time.
	Query map[string]Template `yaml:"query,omitempty"`
	// Items is the path of the list in the response, e.g. data. Leave it empty if the response is
	// the list.
	Items string `yaml:"items,omitempty" path:"true"`
	// Item is the path of the object or event in an element of the list. Leave it empty if the
	// element is the object or event. An event must have the same form as a webhook's body.
	Item string `yaml:"item,omitempty" path:"true"`
	// Time is the format of {since} and {until}: rfc3339, s or ms.
	Time declared.Unit `yaml:"time,omitempty" unset:"rfc3339" words:"rfc3339 s ms"`
	// Limit is the maximum number of elements in a page, for {limit} and next.window.
	Limit int `yaml:"limit,omitempty" validate:"omitempty,gte=1,lte=100000"`
	// Next describes how to find the next page. Leave it out if a list always has one page.
	Next Next `yaml:"next,omitempty"`
}

// List describes how the API lists the objects of one type.
type List struct {
	Page `yaml:",inline"`
	// Partial: true says that the list returns fewer fields than get. Postern then compares id and
	// version, and fetches each object that differs.
	Partial bool `yaml:"partial,omitempty" unset:"false"`
	// Lag is the maximum time after a change during which the list may not show it. Leave it unset
	// for the value of api.lag.
	Lag time.Duration `yaml:"lag,omitempty" unset:"api.lag" validate:"omitempty,lte=86400000000000"`
	// Sparse: true says that many empty pages may come before further objects, for example because
	// the API filters after paging. If it is false, a run fails after a hundred pages without a new
	// object.
	Sparse bool `yaml:"sparse,omitempty" unset:"false"`
}

// Events describes how the API lists its events. The list holds the events of all accounts of the
// key. Key, type and account of the source's events must come from the body, because listed events
// have no headers.
type Events struct {
	Page `yaml:",inline"`
	// At is the event's time, to which {since} and {until} refer.
	At EventTime `yaml:"at,omitempty"`
	// Retention is how long the API lists an event. Runs do not read older events, and Postern does
	// not report older times as complete.
	Retention time.Duration `yaml:"retention,omitempty" unset:"720h" validate:"omitempty,gte=3600000000000,lte=2592000000000000"`
}

// EventTime is a time in an event.
type EventTime struct {
	// Path is the path of the time, e.g. created_at.
	Path string `yaml:"path,omitempty" path:"true"`
	// Unit is s, ms, rfc3339 or auto. With auto, Postern recognizes the format.
	Unit declared.Unit `yaml:"unit,omitempty" unset:"auto" words:"auto s ms rfc3339"`
}

// Next describes how to find the next page, by exactly one of field, address, link, last and
// window. A page number or offset works only if the API returns it. Objects that are created or
// deleted between two pages move all later objects, so Postern reads such pages twice.
type Next struct {
	// Field is the path, in the response, of the next page's {cursor}, e.g. meta.next_cursor. The
	// last page has none.
	Field string `yaml:"field,omitempty" path:"true"`
	// Address is the path, in the response, of the next page's URL, on base_url's host. The last
	// page has none.
	Address string `yaml:"address,omitempty" path:"true"`
	// Link: true says that the header Link carries the next page's URL with rel="next".
	Link bool `yaml:"link,omitempty" unset:"false"`
	// LastObjectField is the path, in a page's last object, of the next page's {cursor}. It is
	// usually id. The list ends with an empty page, or when more says that it ends.
	LastObjectField string `yaml:"last,omitempty" path:"true"`
	// ByTime: true says that pages are ordered by the version, oldest first, and that the version
	// is a time. The next page then lists changes {since} the last object of this one. It requires
	// limit. A page must hold more objects than change in one second.
	ByTime bool `yaml:"window,omitempty" unset:"false"`
	// More is the path, in the response, of the value that says whether another page exists, e.g.
	// has_more. Leave it empty if the API has no such value.
	More string `yaml:"more,omitempty" path:"true"`
}

// bearer is the usual header with the key.
const bearer = "Authorization: Bearer {key}"

// complete returns a copy with all defaults, and with the parameters of lists in their requests.
func (s Spec) complete() Spec {
	if s.Header.text == "" {
		_ = s.Header.UnmarshalText([]byte(bearer))
	}
	if len(s.Missing.Statuses) == 0 {
		s.Missing.Statuses = []int{http.StatusNotFound, http.StatusGone}
	}
	s.Lag = cmp.Or(s.Lag, defaultLag)
	types := map[string]*Type{}
	for name, t := range s.Objects {
		of := *t
		of.ID = cmp.Or(of.ID, "id")
		if t.List != nil {
			list := *t.List
			list.Lag, list.Page = cmp.Or(list.Lag, s.Lag), list.withQuery()
			of.List = &list
		}
		types[name] = &of
	}
	s.Objects = types
	if s.Events != nil {
		events := *s.Events
		events.Retention, events.Page = cmp.Or(events.Retention, defaultEventRetention), events.withQuery()
		s.Events = &events
	}
	return s
}

// withQuery returns a page whose request has all parameters.
func (l Page) withQuery() Page {
	query := maps.Clone(l.Query)
	if query == nil {
		query = map[string]Template{}
	}
	maps.Copy(query, l.Path.Query)
	l.Path.Query = query
	return l
}
