package provider

import (
	"net/http"
	"net/url"
	"time"
)

// API is how a provider's API is called for a source: the source's section api, with the provider's defaults where it says nothing.
type API struct {
	// BaseURL is what the paths of calls follow, without a slash at its end.
	BaseURL string
	// Key is the credential. It goes into the headers that Authorize sets and nowhere else.
	Key Secret
	// Version is the version of the API to ask for, in the provider's spelling; empty: the account's own.
	Version string
	// Rate is the most calls a second, and Concurrency the most at once, of all processes together for one account.
	Rate, Concurrency int
	// Monthly is the most calls within thirty days for one account; 0: no bound.
	Monthly int
	// Timeout bounds one call, from its first byte to the answer's last.
	Timeout time.Duration
	// ThinEvents: the source has thin events too, which a ThinLister lists.
	ThinEvents bool
	// MaxBytes is the largest answer taken, after it was decompressed.
	MaxBytes int64
	// Stragglers is how long to wait for late events before an object is looked at to which a change-set does not fit.
	Stragglers time.Duration
	// Hooks are the webhooks whose deliveries are read, and Repositories those whose objects are listed, as the provider names both. Only a DeliveryLister has either.
	Hooks, Repositories []string
	// Bulk are the types whose objects, where all are asked for, are listed by a file. Only a FileLister has any.
	Bulk []string
	// Types are types of objects beyond those that the provider reads or lists by itself. Only a Typed has any.
	Types map[string]APIType
	// Redeliver: a delivery that cannot be read is asked for once more by the webhook.
	Redeliver bool
}

// APIType is how objects are read of a type that the provider's API has and the provider knows nothing of. How both are spelled is the provider's.
type APIType struct {
	// Get reads one, and List names the list of all; either may be "".
	Get, List string
	// Changed: the list can be asked for what changed in a time.
	Changed bool
}

// Call is a request to a provider's API, without the credential.
type Call struct {
	// Account is the tenant inside the source that the call is for, "" for the key's own: its budget pays.
	Account string
	// Asked: a person has asked for what it reads, by the object's name, so that it may use the calls that are kept for that.
	Asked bool
	// Method is the request's; empty: GET.
	Method string
	// Path follows the base URL, escaped, with a slash before it.
	Path   string
	Query  url.Values
	Header http.Header
	Body   []byte
}

// VerdictKind is what an answer of a provider's API comes to, from a closed set.
type VerdictKind string

// What an answer comes to.
const (
	// Found: the answer carries what was asked for.
	Found VerdictKind = "found"
	// Missing: the provider says that there is no such object. That is believed only after a Control was found under the same credentials.
	Missing VerdictKind = "missing"
	// Throttled: too many calls; nothing was done.
	Throttled VerdictKind = "throttled"
	// Refused: these credentials may not do this. Another try is of no use before a person has changed something.
	Refused VerdictKind = "refused"
	// Expired: the call named a place in a list (a cursor) that is no longer known; the list must be begun again.
	Expired VerdictKind = "expired"
	// Trouble: anything else; another try later may do.
	Trouble VerdictKind = "trouble"
)

// VerdictKinds are all of them.
func VerdictKinds() []VerdictKind {
	return []VerdictKind{Found, Missing, Throttled, Refused, Expired, Trouble}
}

// Verdict is what an answer comes to.
type Verdict struct {
	Kind VerdictKind
	// Wait is how long nobody should call for the account at all; 0: no need to.
	Wait time.Duration
	// Disconnected: of Refused, it is the account that these credentials may not act for, as where it was disconnected, whatever is asked of it.
	Disconnected bool
	// Detail says in words what was seen and, where a person can mend it, what to do; empty for Found. It quotes nothing of the answer but codes.
	Detail string
}

// Reader is a provider whose objects can be read from its API. Its methods are pure, as Provider's are.
type Reader interface {
	Looker
	// CompleteAPI fills in what a source's section api leaves to the provider. The error says what of it cannot be used, without the key.
	CompleteAPI(api *API) error
	// Authorize sets the headers that carry the credential and the version asked for. A version that the call has already stays.
	Authorize(api *API, h http.Header)
	// Fetch is the call that reads an object of the mirror; false where the API has none for it, or not with this key.
	Fetch(src *Source, api *API, account, objectType, objectID string) (Call, bool)
	// Control is a cheap call that is found wherever the credentials are good for the account.
	Control(api *API, account string) Call
	// Answer judges an answer.
	Answer(status int, header http.Header, body []byte) Verdict
}

// ModeReader is a Reader whose key reads one mode of an account (test or live) alone, where the mirror keeps objects of both under one account and Fetch cannot tell by the name in which an object is.
type ModeReader interface {
	// OtherMode tells by an object's state in the mirror, or by an event's body, that it is in the mode that the key does not read.
	OtherMode(api *API, state []byte) bool
}

// Shared is a Reader some of whose objects are called alike in other accounts, so that finding one shows nobody's key.
type Shared interface {
	// SharedTypes are the types of such objects.
	SharedTypes() []string
}

// EventLister is a provider whose API tells which events there were.
type EventLister interface {
	// ListEvents asks for a page of the account's events of a time; both ends belong to it. An empty cursor is the first page.
	ListEvents(api *API, account string, since, until time.Time, cursor string) Call
	// EventPage splits a page of the account's into events, each as a webhook would have carried it, so that Identify and Observe read it unchanged.
	// next is the cursor of the following page, "" after the last.
	EventPage(account string, body []byte) (bodies [][]byte, next string, err error)
}

// EventFetcher is an EventLister whose API gives a single event by its id, as long as it lists it: what a webhook has brought shows so whose the key is.
type EventFetcher interface {
	EventLister
	// FetchEvent is the call that reads an event which a webhook of the account has brought; false where none of the lists that are read for this source tells of such events.
	FetchEvent(api *API, account string, e *Stored) (Call, bool)
}

// TimedLister is a Reader whose API lists its events by time, in pages that only what was asked for can split. Its Control is none of them.
type TimedLister interface {
	Reader
	// EventsKept is how long the API lists an event.
	EventsKept() time.Duration
	// ListTimed asks for a page of the events of a time, of all accounts of the key; both ends belong to it. An empty cursor is the first page.
	ListTimed(api *API, since, until time.Time, cursor string) Call
	// TimedPage splits the answer to ListTimed with these ends and that cursor, and leaves out what is of another time. next is the cursor of the following page, "" after the last.
	TimedPage(src *Source, api *API, since, until time.Time, cursor string, header http.Header, body []byte) (page []TimedEvent, next string, err error)
	// ListedAt is the time under which it lists an event that a webhook has brought; false where the event does not tell.
	ListedAt(e *Stored) (time.Time, bool)
}

// TimedEvent is an event of a TimedLister's.
type TimedEvent struct {
	// Key is the one that Identify gives it; "" where the source does not take it.
	Key string
	// Body is as a webhook would have carried it.
	Body []byte
}

// ThinLister is an EventLister whose API keeps events that only name their objects in a list of their own.
type ThinLister interface {
	EventLister
	// ListThinEvents asks as ListEvents does. EventPage splits the answer.
	ListThinEvents(api *API, account string, since, until time.Time, cursor string) Call
}

// UndeliveredLister is an EventLister whose API tells which events' webhooks have not been taken.
type UndeliveredLister interface {
	EventLister
	// ListUndelivered asks as ListEvents does, for those events alone. EventPage splits the answer.
	ListUndelivered(api *API, account string, since, until time.Time, cursor string) Call
}
