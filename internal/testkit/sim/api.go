package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Looker = Provider{}

// answer is what the simulated API says of an object: what the rule must know of the type, and the object.
type answer struct {
	Unit     int64          `json:"unit"`
	Own      bool           `json:"own"`
	Integer  bool           `json:"integer"`
	Still    bool           `json:"still"`
	Stub     bool           `json:"stub"`
	Volatile []string       `json:"volatile"`
	Version  int64          `json:"version"`
	Object   map[string]any `json:"object"`
}

// Answer is the object's look as the log keeps it, at the same moment as Look's.
func (h *History) Answer(id string, l Look) *provider.Look {
	m, there := h.at(id, l.Began-l.Lag+l.Answered)
	out := &provider.Look{Raised: l.Raised, Date: time.UnixMicro(floor(l.Began+l.Elapsed, second)), Elapsed: time.Duration(l.Elapsed) * time.Microsecond,
		Lag: time.Duration(l.Lag) * time.Microsecond, Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: id}}
	if l.Settles {
		out.Settles = &provider.Settlement{Before: time.UnixMicro(l.Began - l.Lag).UTC(), Who: "ada", Reason: "it was wrong"}
	}
	gone := !there || m.content == nil
	stub := gone && there && h.Final && !m.hidden
	out.Body = text(answer{Unit: h.Unit, Own: h.Own && !gone, Integer: h.Integer, Still: h.Still, Stub: stub, Volatile: volatile, Version: m.own, Object: m.content})
	return out
}

// Lag is none: a Look says how much there was.
func (Provider) Lag() time.Duration { return 0 }

// Snapshot reads an Answer.
func (Provider) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if s.Missing {
		return provider.Observation{ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Deleted: true}, nil
	}
	var a answer
	if err := json.Unmarshal(s.Body, &a); err != nil {
		return provider.Observation{}, err
	}
	v, err := canonical.Parse(s.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	o := provider.Observation{ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: a.Unit, Rank: 1, Volatile: a.Volatile, Own: a.Own, HasAt: a.Own, At: a.Version, Still: a.Still}
	if o.State = v.Get("object"); o.State.Kind() != canonical.Object {
		o.State, o.Deleted, o.Final = nil, true, a.Stub
		if a.Integer {
			o.Partial = "not found, and a counter has no place for that"
		}
	}
	return o, nil
}

var (
	_ provider.Reader       = Provider{}
	_ provider.EventFetcher = Provider{}
)

// CompleteAPI needs nothing.
func (Provider) CompleteAPI(*provider.API) error { return nil }

// Authorize needs no credential.
func (Provider) Authorize(*provider.API, http.Header) {}

// Fetch asks for /things/ID.
func (Provider) Fetch(_ *provider.Source, _ *provider.API, _, objectType, objectID string) (provider.Call, bool) {
	return provider.Call{Path: "/things/" + objectID}, objectType == "thing"
}

// Control asks for /.
func (Provider) Control(*provider.API, string) provider.Call { return provider.Call{Path: "/"} }

// Answer judges by the status alone.
func (Provider) Answer(status int, header http.Header, body []byte) provider.Verdict {
	if status == http.StatusNotFound {
		return provider.Verdict{Kind: provider.Missing}
	}
	return provider.JudgeStatus(status, header, body)
}

// ListEvents asks for /events, in microseconds.
func (Provider) ListEvents(_ *provider.API, account string, since, until time.Time, cursor string) provider.Call {
	return provider.Call{Account: account, Path: "/events", Query: url.Values{"since": {fmt.Sprint(since.UnixMicro())}, "until": {fmt.Sprint(until.UnixMicro())}, "cursor": {cursor}}}
}

// FetchEvent asks for /event/KEY.
func (Provider) FetchEvent(_ *provider.API, account string, e *provider.Stored) (provider.Call, bool) {
	return provider.Call{Account: account, Path: "/event/" + e.Key}, true
}

// page is a page of events as the simulated API answers it.
type page struct {
	Events []json.RawMessage `json:"events"`
	Next   string            `json:"next"`
}

// EventPage splits a page.
func (Provider) EventPage(_ string, body []byte) (bodies [][]byte, next string, err error) {
	var p page
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, "", err
	}
	for _, e := range p.Events {
		bodies = append(bodies, e)
	}
	return bodies, p.Next, nil
}

// Page is the page of the history's events that happened from since to until, newest first and so many at most, behind the event that the cursor
// names; both ends belong to it.
func (h *History) Page(since, until int64, cursor string, limit int) []byte {
	var found []Event
	for _, e := range h.Events {
		if e.Happened >= since && e.Happened <= until {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b Event) int { return cmp.Compare(b.Happened, a.Happened) })
	if i := slices.IndexFunc(found, func(e Event) bool { return e.Key == cursor }); i >= 0 {
		found = found[i+1:]
	}
	out := page{Events: []json.RawMessage{}}
	for _, e := range found[:min(limit, len(found))] {
		out.Events = append(out.Events, e.Body)
	}
	if len(found) > limit {
		out.Next = found[limit-1].Key
	}
	return text(out)
}
