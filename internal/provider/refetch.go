package provider

import (
	"encoding/json"
	"fmt"
	"time"
)

// RefetchType is the event type of a refetch. An object that the provider's API returned enters the
// log as an event of this type. The gateway makes these events; it never accepts them from a
// delivery.
const RefetchType = "postern.refetch"

// Snapshot is an object as the provider's API returned it.
type Snapshot struct {
	// Account, ObjectType and ObjectID identify the object that was requested.
	Account, ObjectType, ObjectID string
	// Missing means that the API has no such object.
	Missing bool
	// Body is the object, byte for byte; nil if it is missing.
	Body []byte
	// APIVersion is the API version that rendered the body; "" if the API has no versions.
	APIVersion string
	// API is the API that was called, so that errors can mask its key. It is nil when the snapshot
	// is read from the log.
	API *API
}

// Refetch is one read of an object from the provider's API, with the times that the version rule
// needs.
type Refetch struct {
	Snapshot
	// Date is the time of the response, on the provider's clock.
	Date time.Time
	// Elapsed is how long the call took. Lag is how old the state in the response may be.
	Elapsed, Lag time.Duration
	// Overwrite is set when an operator lets this refetch win over all local history. It is nil for
	// an ordinary refetch.
	Overwrite *Overwrite
	// Reversioned means that the refetch is ordered by its start, not by the object's own version,
	// with which it would lose to an earlier refetch.
	Reversioned bool
}

// Overwrite is an operator's decision that a refetch wins over all local history.
type Overwrite struct {
	// Before is the start of the refetch less the lag, on our clock. Inputs received before it do
	// not count any more.
	Before time.Time `json:"before"`
	// Actor made the decision, and Reason says why.
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

// Refetcher is a provider whose objects can be fetched from its API. It is pure, as Provider is.
type Refetcher interface {
	// Snapshot reads an object that the API returned. The refetch is ordered by the object's own
	// version (At with OwnVersion), or else by its start. Unit is the resolution of both the
	// version and the clock of the events. A *Dead error needs an operator.
	Snapshot(src *Source, s *Snapshot) (Observation, error)
	// Lag returns how old a state in a response of the API may be.
	Lag() time.Duration
}

// refetchBody is a Refetch as the body of its event.
type refetchBody struct {
	Schema     int    `json:"schema"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	Found      bool   `json:"found"`
	APIVersion string `json:"api_version"`
	// Date is RFC 3339.
	Date      time.Time `json:"date"`
	ElapsedUS int64     `json:"elapsed_us"`
	LagUS     int64     `json:"lag_us"`
	// Overwrite is present only in schema 2. A release that does not know it must not read the
	// refetch as an ordinary one.
	Overwrite *Overwrite `json:"overwrite,omitempty"`
	// Reversioned is present only in schema 3, for the same reason.
	Reversioned bool `json:"reversioned,omitempty"`
	// Object is the object as the API returned it.
	Object json.RawMessage `json:"object,omitempty"`
}

// Encode returns the refetch as the body of its event. The object must be JSON.
func (r *Refetch) Encode() ([]byte, error) {
	if !r.Missing && !json.Valid(r.Body) {
		return nil, fmt.Errorf("%s %s: the API returned no JSON: %s", r.ObjectType, r.ObjectID,
			r.API.Quote(string(r.Body), 60))
	}
	head, err := json.Marshal(refetchBody{Schema: r.schema(), Overwrite: r.Overwrite, Reversioned: r.Reversioned,
		Account: r.Account, ObjectType: r.ObjectType, ObjectID: r.ObjectID, Found: !r.Missing, APIVersion: r.APIVersion,
		Date: r.Date.UTC(), ElapsedUS: r.Elapsed.Microseconds(), LagUS: r.Lag.Microseconds()})
	if err != nil || r.Missing {
		return head, err
	}
	// Marshal would compact and escape the object, so its bytes are appended unchanged.
	out := append(head[:len(head)-1], `,"object":`...)
	return append(append(out, r.Body...), '}'), nil
}

func (r *Refetch) schema() int {
	switch {
	case r.Overwrite != nil:
		return 2
	case r.Reversioned:
		return 3
	}
	return 1
}

// DecodeRefetch reads the body of a refetch's event.
func DecodeRefetch(body []byte) (*Refetch, error) {
	var in refetchBody
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, &Dead{Reason: "the body is no refetch: " + err.Error()}
	}
	switch {
	case in.Schema < 1 || in.Schema > 3:
		return nil, &Dead{Reason: fmt.Sprintf("the refetch has schema %d, and this release reads 1 to 3", in.Schema)}
	case (in.Schema == 2) != (in.Overwrite != nil) || in.Overwrite != nil && in.Overwrite.Before.IsZero():
		return nil, &Dead{Reason: "a refetch must say what it overwrites in schema 2, and only there"}
	case (in.Schema == 3) != in.Reversioned:
		return nil, &Dead{Reason: "a refetch must say that it was re-versioned in schema 3, and only there"}
	case in.Found != (in.Object != nil):
		return nil, &Dead{Reason: "a refetch must contain its object if it found it, and only then"}
	case in.ElapsedUS < 0 || in.LagUS < 0 || in.Date.IsZero():
		return nil, &Dead{Reason: "the refetch does not say when it ran"}
	}
	return &Refetch{Snapshot: Snapshot{Account: in.Account, ObjectType: in.ObjectType, ObjectID: in.ObjectID,
		Missing: !in.Found, Body: in.Object, APIVersion: in.APIVersion},
		Overwrite: in.Overwrite, Reversioned: in.Reversioned, Date: in.Date,
		Elapsed: time.Duration(in.ElapsedUS) * time.Microsecond, Lag: time.Duration(in.LagUS) * time.Microsecond}, nil
}
