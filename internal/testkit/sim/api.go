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

var _ provider.Refetcher = Provider{}

// apiObject is a response of the simulated API: the object, and the properties of its type that the
// version rule needs.
type apiObject struct {
	Unit                 int64          `json:"unit"`
	HasVersion           bool           `json:"own"`
	VersionIsCounter     bool           `json:"integer"`
	VersionMayNotAdvance bool           `json:"still"`
	Stub                 bool           `json:"stub"`
	IgnoredPaths         []string       `json:"volatile"`
	Version              int64          `json:"version"`
	Object               map[string]any `json:"object"`
}

// StoredRefetch returns the refetch of an object as the log stores it. The same Refetch gives the
// same state as History.Refetch.
func (h *History) StoredRefetch(id string, l Refetch) *provider.Refetch {
	m, there := h.revisionAt(id, l.Began-l.Lag+l.ReadOffset)
	out := &provider.Refetch{Reversioned: l.Reversioned, Date: time.UnixMicro(floor(l.Began+l.Elapsed, second)),
		Elapsed: time.Duration(l.Elapsed) * time.Microsecond,
		Lag:     time.Duration(l.Lag) * time.Microsecond, Snapshot: provider.Snapshot{ObjectType: "thing",
			ObjectID: id}}
	if l.Overwrites {
		out.Overwrite = &provider.Overwrite{Before: time.UnixMicro(l.Began - l.Lag).UTC(), Actor: "ada",
			Reason: "it was wrong"}
	}
	gone := !there || m.content == nil
	stub := gone && there && h.FinalDeletes && !m.hidden
	out.Body = text(apiObject{Unit: h.Unit, HasVersion: h.ObjectVersions && !gone, VersionIsCounter: h.VersionIsCounter,
		VersionMayNotAdvance: h.VersionMayNotAdvance, Stub: stub,
		IgnoredPaths: ignoredPaths, Version: m.version, Object: m.content})
	return out
}

// Lag is zero, because each Refetch has its own lag.
func (Provider) Lag() time.Duration { return 0 }

// Snapshot reads a response of the simulated API.
func (Provider) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if s.Missing {
		return provider.Observation{ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Deleted: true}, nil
	}
	var a apiObject
	if err := json.Unmarshal(s.Body, &a); err != nil {
		return provider.Observation{}, err
	}
	v, err := canonical.Parse(s.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	o := provider.Observation{ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: a.Unit, Rank: 1,
		IgnoredPaths: a.IgnoredPaths, OwnVersion: a.HasVersion, HasAt: a.HasVersion, At: a.Version,
		MayNotAdvance: a.VersionMayNotAdvance}
	if o.State = v.Get("object"); o.State.Kind() != canonical.Object {
		o.State, o.Deleted, o.Final = nil, true, a.Stub
		if a.VersionIsCounter {
			o.Partial = "not found, and a missing object has no counter value"
		}
	}
	return o, nil
}

var (
	_ provider.Reader       = Provider{}
	_ provider.EventFetcher = Provider{}
)

// CompleteAPI requires nothing.
func (Provider) CompleteAPI(*provider.API) error { return nil }

// Authorize needs no credential.
func (Provider) Authorize(*provider.API, http.Header) {}

// Fetch requests /things/ID.
func (Provider) Fetch(_ *provider.Source, _ *provider.API, _, objectType, objectID string) (provider.Call, bool) {
	return provider.Call{Path: "/things/" + objectID}, objectType == "thing"
}

// CredentialCheck requests /.
func (Provider) CredentialCheck(*provider.API, string) provider.Call { return provider.Call{Path: "/"} }

// Answer classifies a response by its status alone.
func (Provider) Answer(status int, header http.Header, body []byte) provider.Verdict {
	if status == http.StatusNotFound {
		return provider.Verdict{Kind: provider.Missing}
	}
	return provider.ClassifyStatus(status, header, body)
}

// ListEvents requests /events. Its times are microseconds.
func (Provider) ListEvents(_ *provider.API, account string, since, until time.Time, cursor string) provider.Call {
	return provider.Call{Account: account, Path: "/events", Query: url.Values{"since": {fmt.Sprint(since.UnixMicro())},
		"until": {fmt.Sprint(until.UnixMicro())}, "cursor": {cursor}}}
}

// FetchEvent requests /event/KEY.
func (Provider) FetchEvent(_ *provider.API, account string, e *provider.StoredEvent) (provider.Call, bool) {
	return provider.Call{Account: account, Path: "/event/" + e.Key}, true
}

// page is a page of events as the simulated API returns it.
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

// EventsPage returns a page of the events that occurred from since to until, both included, newest
// first. It has at most limit events and begins after the event of the cursor.
func (h *History) EventsPage(since, until int64, cursor string, limit int) []byte {
	var found []Event
	for _, e := range h.Events {
		if e.OccurredAt >= since && e.OccurredAt <= until {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b Event) int { return cmp.Compare(b.OccurredAt, a.OccurredAt) })
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
