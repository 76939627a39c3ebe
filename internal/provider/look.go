package provider

import (
	"encoding/json"
	"fmt"
	"time"
)

// LookType is the event type of looks: an object as the provider's API answered it enters the log as an event of this type, made by us and
// never taken from a delivery.
const LookType = "postern.look"

// Snapshot is an object as the provider's API answered it.
type Snapshot struct {
	// Account, ObjectType and ObjectID are whom it was asked for.
	Account, ObjectType, ObjectID string
	// Missing: the API has no such object.
	Missing bool
	// Body is the object, byte for byte; nil where it is missing.
	Body []byte
	// APIVersion is the version of the API that rendered the body, "" where there are none.
	APIVersion string
	// API is what answered, so that no error shows its key; nil where the answer is read from the log.
	API *API
}

// Look is one fetch of an object, with what the version rule must know of when it was.
type Look struct {
	Snapshot
	// Date is the answer's own time, on the provider's clock.
	Date time.Time
	// Elapsed is how long the answer took, and Lag how old a state the API may answer with.
	Elapsed, Lag time.Duration
	// Settles: a person has this look win over all that was there before; nil for the look that nobody has.
	Settles *Settlement
	// Raised: it is ordered by when it began, whatever version of its own the object carries, since it was made after one that could not be ordered by any other.
	Raised bool
}

// Settlement is a person's word that a look is to win.
type Settlement struct {
	// Before is when the look began, less the lag, on our clock: what was received before does not count any more.
	Before time.Time `json:"before"`
	// Who had it so, and Reason is why.
	Who    string `json:"who"`
	Reason string `json:"reason"`
}

// Looker is a provider whose objects can be fetched from its API. Like all of a provider it is pure.
type Looker interface {
	// Snapshot reads an object of the API. The observation's own version (At, with Own) is used, any other At is not: a look is ordered by when it
	// began. Unit is the resolution of both the version and the clock that events are stamped with. A *Dead error needs a person.
	Snapshot(src *Source, s *Snapshot) (Observation, error)
	// Lag is how old a state the API may answer with.
	Lag() time.Duration
}

// look is a Look as the body of its event.
type look struct {
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
	// Settles is there in schema 2 alone: who does not know it must not take the look for one that settles nothing.
	Settles *Settlement `json:"settles,omitempty"`
	// Raised is there in schema 3 alone, for the same reason.
	Raised bool `json:"raised,omitempty"`
	// Object is the object as it was answered.
	Object json.RawMessage `json:"object,omitempty"`
}

// Encode is the look as the body of its event. The object must be JSON.
func (l *Look) Encode() ([]byte, error) {
	if !l.Missing && !json.Valid(l.Body) {
		return nil, fmt.Errorf("%s %s: the API answered no JSON: %s", l.ObjectType, l.ObjectID, l.API.Quote(string(l.Body), 60))
	}
	head, err := json.Marshal(look{Schema: l.schema(), Settles: l.Settles, Raised: l.Raised, Account: l.Account, ObjectType: l.ObjectType, ObjectID: l.ObjectID, Found: !l.Missing, APIVersion: l.APIVersion,
		Date: l.Date.UTC(), ElapsedUS: l.Elapsed.Microseconds(), LagUS: l.Lag.Microseconds()})
	if err != nil || l.Missing {
		return head, err
	}
	// Marshal would make the object compact and escape it: its bytes are kept.
	out := append(head[:len(head)-1], `,"object":`...)
	return append(append(out, l.Body...), '}'), nil
}

func (l *Look) schema() int {
	switch {
	case l.Settles != nil:
		return 2
	case l.Raised:
		return 3
	}
	return 1
}

// DecodeLook reads the body of a look's event.
func DecodeLook(body []byte) (*Look, error) {
	var in look
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, &Dead{Reason: "the body is no look: " + err.Error()}
	}
	switch {
	case in.Schema < 1 || in.Schema > 3:
		return nil, &Dead{Reason: fmt.Sprintf("the look has schema %d, and this release reads 1 to 3", in.Schema)}
	case (in.Schema == 2) != (in.Settles != nil) || in.Settles != nil && in.Settles.Before.IsZero():
		return nil, &Dead{Reason: "a look must say what it settles where it has schema 2, and only there"}
	case (in.Schema == 3) != in.Raised:
		return nil, &Dead{Reason: "a look must say that it was raised where it has schema 3, and only there"}
	case in.Found != (in.Object != nil):
		return nil, &Dead{Reason: "a look must carry its object where it has found it, and only there"}
	case in.ElapsedUS < 0 || in.LagUS < 0 || in.Date.IsZero():
		return nil, &Dead{Reason: "the look does not tell when it was"}
	}
	return &Look{Snapshot: Snapshot{Account: in.Account, ObjectType: in.ObjectType, ObjectID: in.ObjectID, Missing: !in.Found, Body: in.Object, APIVersion: in.APIVersion},
		Settles: in.Settles, Raised: in.Raised, Date: in.Date, Elapsed: time.Duration(in.ElapsedUS) * time.Microsecond, Lag: time.Duration(in.LagUS) * time.Microsecond}, nil
}
