package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.ObjectLister = Provider{}

// What the simulated API can do is said by its Version, words with commas between.
const (
	// ByChange: lists tell what changed in a time.
	ByChange = "by-change"
	// Named: lists name the objects only.
	Named = "named"
	// Numbered: lists name the objects and their own versions only.
	Numbered = "numbered"
	// Both: lists tell the objects and their own versions.
	Both = "both"
	// Late: lists may be as old as ListLag.
	Late = "late"
)

// ListLag is how old the lists of an API that is Late may be.
const ListLag = 5 * time.Second

// Lists are things.
func (Provider) Lists(_ *provider.Source, api *provider.API, _ string) map[string]provider.List {
	l := provider.List{ByChange: strings.Contains(api.Version, ByChange)}
	if strings.Contains(api.Version, Late) {
		l.Lag = ListLag
	}
	return map[string]provider.List{"thing": l}
}

// ListObjects asks for /list, in microseconds.
func (Provider) ListObjects(_ *provider.Source, _ *provider.API, _, _ string, since, until time.Time, cursor string) provider.Call {
	q := url.Values{"cursor": {cursor}}
	if !since.IsZero() {
		q.Set("since", fmt.Sprint(since.UnixMicro()))
		q.Set("until", fmt.Sprint(until.UnixMicro()))
	}
	return provider.Call{Path: "/list", Query: q}
}

// listPage is a page of objects as the simulated API answers it.
type listPage struct {
	Things []listed `json:"things"`
	Next   string   `json:"next"`
}

type listed struct {
	ID     string          `json:"id"`
	At     int64           `json:"at"`
	Answer json.RawMessage `json:"answer"`
}

// ObjectPage splits a page.
func (Provider) ObjectPage(_ *provider.Source, api *provider.API, _, _, _ string, _ http.Header, body []byte) ([]provider.Listed, string, error) {
	var p listPage
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, "", err
	}
	all := make([]provider.Listed, len(p.Things))
	for i, one := range p.Things {
		all[i].ObjectID = one.ID
		switch {
		case strings.Contains(api.Version, Named):
		case strings.Contains(api.Version, Numbered):
			all[i].At, all[i].HasAt = one.At, true
		case strings.Contains(api.Version, Both):
			all[i].At, all[i].HasAt, all[i].Body = one.At, true, one.Answer
		default:
			all[i].Body = one.Answer
		}
	}
	return all, p.Next, nil
}

// List is the page of the objects that there were at a moment, behind the one that the cursor names and so many at most; where until is not 0, of those that changed from since on
// and before the end of until.
func (h *History) List(at, since, until int64, cursor string, limit int) []byte {
	out := listPage{Things: []listed{}}
	found := cursor == ""
	for _, id := range h.ObjectIDs() {
		if !found {
			found = id == cursor
			continue
		}
		m, there := h.at(id, at)
		if !there || m.content == nil || until != 0 && (m.from < since || m.from > until) {
			continue
		}
		if len(out.Things) == limit {
			out.Next = out.Things[limit-1].ID
			break
		}
		out.Things = append(out.Things, listed{ID: id, At: m.own, Answer: h.Answer(id, Look{Began: at}).Body})
	}
	return text(out)
}
