package admin_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// TestEvents_mentions_searchAPageOfTheLogAtATime has the mentions at both ends of a log that is longer than a page looks at.
func TestEvents_mentions_searchAPageOfTheLogAtATime(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	known, err := events.RegisterSources(t.Context(), db.Role(t, "processor"), map[string]string{"shop": "shopify"})
	if err != nil {
		t.Fatal(err)
	}
	const n = 30_000
	first := events.FirstID(time.Now().Add(-time.Minute))
	db.Exec(t, `SELECT ensure_partitions($1, $1)`, events.Time(first).UnixMilli())
	db.Exec(t, `INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, received_at, origin, api_version, headers, verification, fingerprint,
		delivery_id, delivery_index, body) SELECT $1::bigint + i, $2, 'e' || i, 't', '', '', '', now(), 'webhook', '', '{}', '{}', '', $1::bigint + i, 0,
		convert_to(CASE WHEN i IN (1, 2, $3::int) THEN '{"customer": "cus_1a"}' ELSE '{"customer": "cus_1ab"}' END, 'UTF8') FROM generate_series(1, $3::int) AS i`,
		first, known.Number["shop"], n)
	values := url.Values{"mentions": {"cus_1a"}, "source": {"shop"}}
	var found []string
	for pages := 1; ; pages++ {
		page, err := admin.Events(t.Context(), db.Role(t, "operator"), values)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Items {
			found = append(found, e.EventID)
		}
		if page.Next == "" {
			if !page.SearchedTo.IsZero() || pages == 1 {
				t.Errorf("the last of %d pages has searched to %s", pages, page.SearchedTo)
			}
			break
		}
		if page.SearchedTo.IsZero() {
			t.Error("a page that is not the last does not say how far it has searched")
		}
		values.Set("cursor", page.Next)
	}
	if got, want := fmt.Sprint(found), fmt.Sprintf("[e%d e2 e1]", n); got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}
