package rest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/rest"
	"github.com/postern-gateway/postern/internal/signature"
)

// lister lists events whose key is their id.
func lister(t testing.TB) *rest.Lister {
	t.Helper()
	return rest.NewLister(rest.Spec{Events: &rest.Events{
		Page: rest.Page{Path: request(t, "/events", "from", "{since}", "to", "{until}", "after", "{cursor}"),
			Items: "data", Item: "event", Next: rest.Next{Field: "next"}},
		At: rest.EventTime{Path: "at", Unit: declared.RFC3339}, Retention: time.Hour,
	}}, declared.New(declared.Spec{Name: "x",
		Events: declared.Events{Key: []signature.Template{signature.MustTemplate("{json:id}")},
			Account: []signature.Template{signature.MustTemplate("{json:shop}")}}}))
}

// The test lists events around a time range. Only events within it are returned, each once,
// unchanged, of all accounts.
func TestTimedPage_events_areFilteredByTime(t *testing.T) {
	t.Parallel()
	l, since := lister(t), time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	until := since.Add(4*time.Second - time.Microsecond)
	if c := l.ListTimed(api, since, until, "c"); c.Path != "/events" ||
		c.Query.Encode() != "after=c&from=2026-01-02T02%3A59%3A59Z&to=2026-01-02T03%3A00%3A05Z" {
		t.Errorf("requested %s?%s", c.Path, c.Query.Encode())
	}
	var events []string
	for second := -2; second < 7; second++ {
		events = append(events, fmt.Sprintf(`{"event": {"id":  "evt_%d", "at": %q}}`, second,
			since.Add(time.Duration(second)*time.Second).Format(time.RFC3339)))
	}
	events = append(events, `{"event": {"id": "other", "shop": "not allowed", "at": "2026-01-02T03:00:01Z"}}`)
	page, next, err := l.TimedPage(source, api, since, until, "c", http.Header{},
		[]byte(`{"data": [`+strings.Join(events, ", ")+`], "next": "d"}`))
	if err != nil || next != "d" {
		t.Fatalf("%q, %v", next, err)
	}
	var keys []string
	for _, e := range page {
		keys = append(keys, e.Key)
	}
	if d := cmp.Diff([]string{"evt_0", "evt_1", "evt_2", "evt_3", ""}, keys); d != "" {
		t.Error(d)
	}
	if got := string(page[0].Body); got != `{"id":  "evt_0", "at": "2026-01-02T03:00:00Z"}` {
		t.Errorf("the body is %s", got)
	}
}

// A page without a required value of an event is an error.
func TestTimedPage_malformedEvents_isError(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"data": [{"event": {"at": "2026-01-02T03:00:00Z"}}]}`:             "event 0: it contains no key",
		`{"data": [{"event": {"id": "a", "at": "soon"}}]}`:                  `event 0 has no time at "at"`,
		`{"data": [{"id": "a"}]}`:                                           `element 0 is no event at "event"`,
		`{"events": []}`:                                                    `the response has no list at "data"`,
		`{"data": [], "next": "` + key + `"}`:                               "contains the key",
		`{"data": [{"event": {"id": "a", "at": "2026-01-02T03:00:00Z"}}]}x`: "",
	} {
		_, _, err := lister(t).TimedPage(source, api, time.Time{}, time.Now(), "", http.Header{}, []byte(body))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"data": [{"event": {"id": "a", "at": "2026-01-02T03:00:00Z"}}], "next": "c"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		page, next, err := lister(t).TimedPage(source, api, time.Time{}, time.Now(), "", http.Header{}, body)
		if err != nil && (page != nil || next != "") {
			t.Errorf("%v with %+v, %q", err, page, next)
		}
		for _, e := range page {
			if again, err := declaredKey(t, e.Body); err != nil || again != e.Key {
				t.Errorf("%q has the key %q, then %q (%v)", e.Body, e.Key, again, err)
			}
		}
	})
}

// declaredKey returns the key of a webhook with the body, or "" if the source does not accept it.
func declaredKey(t *testing.T, body []byte) (string, error) {
	t.Helper()
	page, _, err := lister(t).TimedPage(source, api, time.Time{}, time.Now(), "", http.Header{},
		[]byte(`{"data": [{"event": `+string(body)+`}]}`))
	if err != nil || len(page) != 1 {
		return "", fmt.Errorf("%d events: %w", len(page), err)
	}
	return page[0].Key, nil
}
