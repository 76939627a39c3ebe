package config

import "time"

// APIAnswer is an answer of the API that says something.
type APIAnswer struct {
	// Statuses are those that such an answer has.
	Statuses []int `yaml:"statuses,omitempty"`
	// Path is where in its body a value shows it, e.g. error.code. Leave empty where the status alone does.
	Path string `yaml:"path,omitempty"`
	// Equals is what that value must be. Leave empty where it need only be there.
	Equals string `yaml:"equals,omitempty"`
}

// APIObject is how the API reads the objects of a type.
type APIObject struct {
	// Get is the path of the call that reads an object, below base_url, with {id} and, where it takes one, {account}: /v1/orders/{id}. A query
	// may follow after a question mark. A call that names no account is made for objects of the source's own alone.
	Get string `yaml:"get,omitempty"`
	// Item is the path of the object in that answer, e.g. data; 0 is the first of a list. Leave empty where it is the answer. It must be what
	// the events of the source have as an object's state.
	Item string `yaml:"item,omitempty"`
	// ID is the path of the object's id in it, which is the one by which events name the object.
	ID string `yaml:"id,omitempty" shown:"id"`
	// Version is what orders the states of an object: that which orders its events too. Leave empty where those are ordered by their time:
	// then a look is ordered by when it began.
	Version APIVersion `yaml:"version,omitempty"`
	// Deleted tells of an object that it is gone, where the API still answers it. It is a value in the object.
	Deleted APIValue `yaml:"deleted,omitempty"`
	// Volatile are paths in the object that change without a new version, and are left out where states are compared. A path goes through each element of an array.
	Volatile []string `yaml:"volatile,omitempty"`
	// List is how the API lists them. Leave it out where it does not: then nothing finds what no webhook told of.
	List APIList `yaml:"list,omitempty"`
}

// APIVersion is an object's own version.
type APIVersion struct {
	// Path is where it stands in the object, e.g. updated_at.
	Path string `yaml:"path,omitempty"`
	// Unit is s, ms, rfc3339, integer (a number that grows with each change), or auto: a time by its look.
	Unit string `yaml:"unit,omitempty" shown:"auto"`
	// Still: true says that it is not known to change with every change of the object.
	Still bool `yaml:"still,omitempty" shown:"false"`
}

// APIValue is a value in an object.
type APIValue struct {
	// Path is where it stands, e.g. status.
	Path string `yaml:"path,omitempty"`
	// Equals is what it must be. Leave empty where it need only be there, and be none of null, false, 0 and empty.
	Equals string `yaml:"equals,omitempty"`
}

// APIEvents is how the API lists its events, those of all accounts of the key together. The source's events must name an event (key, type, account) by what its body
// says, as no header comes with it here.
type APIEvents struct {
	// Path is that of the call, below base_url.
	Path string `yaml:"path,omitempty"`
	// Query are the parameters of each page: words with {limit}, {cursor}, {since} and {until}, as those of a list of objects. It must name both
	// {since} and {until}: events are read one stretch of time after the other.
	Query map[string]string `yaml:"query,omitempty"`
	// Items is the path of the list in the answer, e.g. data. Leave empty where it is the answer.
	Items string `yaml:"items,omitempty"`
	// Item is the path, in an element of that list, of the event as a webhook's body tells it. Leave empty where it is the element.
	Item string `yaml:"item,omitempty"`
	// At is the event's time, by which {since} and {until} go.
	At APIMoment `yaml:"at,omitempty"`
	// Time is how {since} and {until} are written: rfc3339, s or ms.
	Time string `yaml:"time,omitempty" shown:"rfc3339"`
	// Limit is how many events a page holds at most, for {limit} and for next.window.
	Limit int `yaml:"limit,omitempty" validate:"omitempty,gte=1,lte=100000"`
	// Kept is how long the API lists an event: no run looks further back, and what is older is not taken for proven.
	Kept time.Duration `yaml:"kept,omitempty" shown:"720h" validate:"omitempty,gte=3600000000000,lte=2592000000000000"`
	// Next is how the following page is found. Leave it out where a list is one page.
	Next APINext `yaml:"next,omitempty"`
}

// APIMoment is a time in an event.
type APIMoment struct {
	// Path is where it stands, e.g. created_at.
	Path string `yaml:"path,omitempty"`
	// Unit is s, ms, rfc3339, or auto: by its look.
	Unit string `yaml:"unit,omitempty" shown:"auto"`
}

// APIList is how the API lists the objects of a type.
type APIList struct {
	// Path is that of the call, below base_url; {account} may stand in it.
	Path string `yaml:"path,omitempty"`
	// Query are the parameters of each page: words with {account}, {limit}, {cursor} (what next finds; nothing on the first page), {since} and
	// {until} (to list only what changed in that time, ends included). One of which a name stands for nothing is left out. Ask for archived
	// and cancelled objects too, and for an order that does not change with the objects: by id or time of creation.
	Query map[string]string `yaml:"query,omitempty"`
	// Items is the path of the list in the answer, e.g. data. Leave empty where it is the answer.
	Items string `yaml:"items,omitempty"`
	// Item is the path of the object in an element of that list, where it is not the element.
	Item string `yaml:"item,omitempty"`
	// Partial: true says that the list tells less of an object than get does: then id and version are compared, and what differs is fetched.
	Partial bool `yaml:"partial,omitempty" shown:"false"`
	// Time is how {since} and {until} are written: rfc3339, s or ms.
	Time string `yaml:"time,omitempty" shown:"rfc3339"`
	// Limit is how many objects a page holds at most, for {limit} and for next.window.
	Limit int `yaml:"limit,omitempty" validate:"omitempty,gte=1,lte=100000"`
	// Lag is how long after a change the list may still lack it. Leave unset for that of api.lag.
	Lag time.Duration `yaml:"lag,omitempty" shown:"api.lag" validate:"omitempty,lte=86400000000000"`
	// Sparse: true says that many pages in a row may be empty and others follow, as where the API filters what it has paged. Without it a hundred pages that tell of nothing new end the run.
	Sparse bool `yaml:"sparse,omitempty" shown:"false"`
	// Next is how the following page is found. Leave it out where a list is one page.
	Next APINext `yaml:"next,omitempty"`
}

// APINext is how the following page is found, by one of field, address, link, last and window. A number or an offset must be
// one that the API tells: what is made or deleted meanwhile moves all that follows, so such pages are read twice.
type APINext struct {
	// Field is the path in the answer of the next page's {cursor}, e.g. meta.next_cursor; the last page has none.
	Field string `yaml:"field,omitempty"`
	// Address is the path in the answer of the next page's address, on base_url's host; the last page has none.
	Address string `yaml:"address,omitempty"`
	// Link: true says that the header Link has the next page's address, with rel="next".
	Link bool `yaml:"link,omitempty" shown:"false"`
	// Last is the path, in a page's last object, of the {cursor} of the next, mostly id. The end is an empty page, or what more says.
	Last string `yaml:"last,omitempty"`
	// Window: true says that pages are in the order of the version, a time, the oldest first, and that the next is what changed {since} the
	// last object of this one. It needs limit, and more room in a page than there are changes in a second.
	Window bool `yaml:"window,omitempty" shown:"false"`
	// More is the path in the answer of whether there is another page, e.g. has_more. Leave empty where nothing says so.
	More string `yaml:"more,omitempty"`
}
