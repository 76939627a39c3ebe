package provider

import (
	"net/http"
	"net/url"
	"time"
)

// API holds the settings with which a source's provider API is called: the source's section api,
// with the provider's defaults for what it leaves out.
type API struct {
	// BaseURL precedes the paths of all calls. It has no slash at its end.
	BaseURL string
	// Key is the credential. Only the headers that Authorize sets may contain it.
	Key Secret
	// Version is the API version to request, in the provider's spelling. Empty means the account's
	// own version.
	Version string
	// Rate is the maximum number of calls per second, and Concurrency the maximum number at once.
	// Both apply to one account and all processes together.
	Rate, Concurrency int
	// MonthlyCalls is the maximum number of calls for one account within thirty days; 0 means no
	// limit.
	MonthlyCalls int
	// Timeout limits one call, from its first byte to the last byte of the response.
	Timeout time.Duration
	// IDOnlyEvents means that the source receives id-only events too, which an IDOnlyEventLister
	// lists.
	IDOnlyEvents bool
	// MaxBytes is the maximum size of a response after decompression.
	MaxBytes int64
	// LateEventGrace is how long the processor waits for a late event before it requests a refetch
	// of an object whose stored state does not match an event's previous attributes.
	LateEventGrace time.Duration
	// Webhooks are the webhooks whose deliveries are read, and Repositories those whose objects are
	// listed, in the provider's spelling. Only a DeliveryLister uses them.
	Webhooks, Repositories []string
	// Bulk lists the types whose complete list is read from a file. Only a FileLister uses it.
	Bulk []string
	// Types are object types that the source describes, beyond those that the provider supports.
	// Only a TypeChecker uses them.
	Types map[string]APIType
	// Redeliver means that the gateway may ask the provider to send a missed delivery again, if the
	// API does not return its content.
	Redeliver bool
}

// APIType says how to read objects of a type that the provider does not know. The provider defines
// the format of both fields.
type APIType struct {
	// Get reads one object, and List names the list of all. Either may be empty.
	Get, List string
	// Changed means that the list can be limited to the objects that changed in a time range.
	Changed bool
}

// Call is a request to a provider's API, without the credential.
type Call struct {
	// Account is the tenant inside the source that the call is for, or "" for the key's own
	// account. The call counts against its rate budget.
	Account string
	// Manual means that an operator requested this object by its name. Such a call may use the
	// calls that are reserved for operators.
	Manual bool
	// Method is the HTTP method; empty means GET.
	Method string
	// Path follows the base URL. It is escaped and begins with a slash.
	Path   string
	Query  url.Values
	Header http.Header
	Body   []byte
}

// VerdictKind classifies a response of a provider's API. It is a closed set.
type VerdictKind string

// The kinds of a Verdict.
const (
	// Found: the response contains what was requested.
	Found VerdictKind = "found"
	// Missing: the provider says that the object does not exist. The caller believes it only if a
	// CredentialCheck with the same credentials succeeds.
	Missing VerdictKind = "missing"
	// Throttled: there were too many calls, and nothing was done.
	Throttled VerdictKind = "throttled"
	// Rejected: these credentials may not make this call. A retry is useless before an operator
	// changes something.
	Rejected VerdictKind = "rejected"
	// Expired: the call's cursor is no longer known. The list must be read again from the start.
	Expired VerdictKind = "expired"
	// Failure: anything else. A later retry may succeed.
	Failure VerdictKind = "failure"
)

// VerdictKinds returns all kinds.
func VerdictKinds() []VerdictKind {
	return []VerdictKind{Found, Missing, Throttled, Rejected, Expired, Failure}
}

// Verdict is the classification of a response.
type Verdict struct {
	Kind VerdictKind
	// Wait is how long no call may be made for the account; 0 means no wait.
	Wait time.Duration
	// Disconnected applies to Rejected: the credentials may not act for the account at all, for
	// example because it was disconnected.
	Disconnected bool
	// Detail describes the response and, if an operator can fix the problem, says how. It is empty
	// for Found. It quotes nothing of the response but codes.
	Detail string
}

// Reader is a provider whose objects can be read from its API. Its methods are pure, as those of
// Provider.
type Reader interface {
	Refetcher
	// CompleteAPI fills in what a source's section api leaves out. The error says which setting
	// cannot be used, and never contains the key.
	CompleteAPI(api *API) error
	// Authorize sets the headers with the credential and the requested version. A version that the
	// call already has stays.
	Authorize(api *API, h http.Header)
	// Fetch returns the call that reads an object of the mirror. It returns false if the API has no
	// such call, or not for this key.
	Fetch(src *Source, api *API, account, objectType, objectID string) (Call, bool)
	// CredentialCheck returns a cheap call that succeeds whenever the credentials are valid for the
	// account.
	CredentialCheck(api *API, account string) Call
	// Answer classifies a response.
	Answer(status int, header http.Header, body []byte) Verdict
}

// ModeReader is a Reader whose key reads only one mode of an account (test or live). The mirror
// keeps objects of both modes under one account, and an object's name does not contain its mode.
type ModeReader interface {
	// OtherMode reports, from an object's state in the mirror or an event's body, whether it is in
	// the mode that the key does not read.
	OtherMode(api *API, state []byte) bool
}

// SharedTypeReader is a Reader some of whose objects have the same name in every account. Finding
// such an object does not show which account the key belongs to.
type SharedTypeReader interface {
	// SharedTypes returns the types of such objects.
	SharedTypes() []string
}

// EventLister is a provider whose API lists past events.
type EventLister interface {
	// ListEvents returns the call for a page of the account's events in a time range. Both ends are
	// included. An empty cursor means the first page.
	ListEvents(api *API, account string, since, until time.Time, cursor string) Call
	// EventPage splits a page of the account's events, each in the format of a webhook, so that
	// Identify and Observe read it unchanged. next is the cursor of the next page, or "" after the
	// last.
	EventPage(account string, body []byte) (bodies [][]byte, next string, err error)
}

// EventFetcher is an EventLister whose API returns a single event by its id, as long as it lists
// it. Fetching an event that a webhook delivered shows which account the key belongs to.
type EventFetcher interface {
	EventLister
	// FetchEvent returns the call that reads an event delivered by a webhook of the account. It
	// returns false if no list that is read for this source contains such events.
	FetchEvent(api *API, account string, e *StoredEvent) (Call, bool)
}

// TimedLister is a Reader whose API lists its events by time. A page can be split only with the
// parameters of its call. CredentialCheck never returns the call for a page.
type TimedLister interface {
	Reader
	// EventRetention is how long the API lists an event.
	EventRetention() time.Duration
	// ListTimed returns the call for a page of the events of a time range, of all accounts of the
	// key. Both ends are included. An empty cursor means the first page.
	ListTimed(api *API, since, until time.Time, cursor string) Call
	// TimedPage splits the response to ListTimed with the same arguments, and leaves out events of
	// other times. next is the cursor of the next page, or "" after the last.
	TimedPage(src *Source, api *API, since, until time.Time, cursor string, header http.Header,
		body []byte) (page []TimedEvent, next string, err error)
	// ListedAt returns the time under which the API lists an event that a webhook delivered. It
	// returns false if the event does not contain that time.
	ListedAt(e *StoredEvent) (time.Time, bool)
}

// TimedEvent is an event on a page of a TimedLister.
type TimedEvent struct {
	// Key is the key that Identify gives the event, or "" if the source does not accept its
	// account.
	Key string
	// Body is the body that a webhook would have delivered.
	Body []byte
}

// IDOnlyEventLister is an EventLister whose API keeps id-only events in a separate list.
type IDOnlyEventLister interface {
	EventLister
	// ListIDOnlyEvents is ListEvents for that list. EventPage splits its pages.
	ListIDOnlyEvents(api *API, account string, since, until time.Time, cursor string) Call
}

// UndeliveredLister is an EventLister whose API lists the events that a webhook endpoint did not
// accept.
type UndeliveredLister interface {
	EventLister
	// ListUndelivered is ListEvents for those events only. EventPage splits its pages.
	ListUndelivered(api *API, account string, since, until time.Time, cursor string) Call
}
