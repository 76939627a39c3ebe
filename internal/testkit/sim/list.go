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

// The Version of an API contains the abilities of the simulated API, separated by commas.
const (
	// ListsByChange: lists can be limited to objects that changed in a time range.
	ListsByChange = "by-change"
	// ListsIDs: lists contain the ids only.
	ListsIDs = "named"
	// ListsVersions: lists contain the ids and versions only.
	ListsVersions = "numbered"
	// ListsObjectsAndVersions: lists contain the objects and their versions.
	ListsObjectsAndVersions = "both"
	// ListsLate: the state of lists may be as old as MaxListLag.
	ListsLate = "late"
)

// MaxListLag is the largest age of lists with ListsLate.
const MaxListLag = 5 * time.Second

// Lists returns the only type, thing.
func (Provider) Lists(_ *provider.Source, api *provider.API, _ string) map[string]provider.List {
	l := provider.List{ByChange: strings.Contains(api.Version, ListsByChange)}
	if strings.Contains(api.Version, ListsLate) {
		l.Lag = MaxListLag
	}
	return map[string]provider.List{"thing": l}
}

// ListObjects requests /list. Its times are microseconds.
func (Provider) ListObjects(_ *provider.Source, _ *provider.API, _, _ string, since, until time.Time,
	cursor string) provider.Call {
	q := url.Values{"cursor": {cursor}}
	if !since.IsZero() {
		q.Set("since", fmt.Sprint(since.UnixMicro()))
		q.Set("until", fmt.Sprint(until.UnixMicro()))
	}
	return provider.Call{Path: "/list", Query: q}
}

// listPage is a page of objects as the simulated API returns it.
type listPage struct {
	Things []listedObject `json:"things"`
	Next   string         `json:"next"`
}

type listedObject struct {
	ID     string          `json:"id"`
	At     int64           `json:"at"`
	Object json.RawMessage `json:"answer"`
}

// ObjectPage splits a page.
func (Provider) ObjectPage(_ *provider.Source, api *provider.API, _, _, _ string, _ http.Header,
	body []byte) ([]provider.ListedObject, string, error) {
	var p listPage
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, "", err
	}
	all := make([]provider.ListedObject, len(p.Things))
	for i, one := range p.Things {
		all[i].ObjectID = one.ID
		switch {
		case strings.Contains(api.Version, ListsIDs):
		case strings.Contains(api.Version, ListsVersions):
			all[i].At, all[i].HasAt = one.At, true
		case strings.Contains(api.Version, ListsObjectsAndVersions):
			all[i].At, all[i].HasAt, all[i].Body = one.At, true, one.Object
		default:
			all[i].Body = one.Object
		}
	}
	return all, p.Next, nil
}

// ObjectsPage returns a page of the objects that existed at a time, with at most limit objects
// after the one of the cursor. If until is not 0, the page has only objects that changed from since
// to the end of until.
func (h *History) ObjectsPage(at, since, until int64, cursor string, limit int) []byte {
	out := listPage{Things: []listedObject{}}
	found := cursor == ""
	for _, id := range h.ObjectIDs() {
		if !found {
			found = id == cursor
			continue
		}
		m, there := h.revisionAt(id, at)
		if !there || m.content == nil || until != 0 && (m.from < since || m.from > until) {
			continue
		}
		if len(out.Things) == limit {
			out.Next = out.Things[limit-1].ID
			break
		}
		out.Things = append(out.Things,
			listedObject{ID: id, At: m.version, Object: h.StoredRefetch(id, Refetch{Began: at}).Body})
	}
	return text(out)
}
