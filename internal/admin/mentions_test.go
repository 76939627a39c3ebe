package admin_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
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

// TestEvents_mentions_outOfTime_endThePageAfterAFewBodies: the bodies of one page may be longer than any time allows.
func TestEvents_mentions_outOfTime_endThePageAfterAFewBodies(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	known, err := events.RegisterSources(t.Context(), db.Role(t, "processor"), map[string]string{"shop": "shopify"})
	if err != nil {
		t.Fatal(err)
	}
	const n = 60
	first := events.FirstID(time.Now().Add(-time.Minute))
	db.Exec(t, `SELECT ensure_partitions($1, $1)`, events.Time(first).UnixMilli())
	db.Exec(t, `INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, received_at, origin, api_version, headers, verification, fingerprint,
		delivery_id, delivery_index, body) SELECT $1::bigint + i, $2, 'e' || i, 't', '', '', '', now(), 'webhook', '', '{}', '{}', '', $1::bigint + i, 0,
		convert_to(CASE WHEN i % 5 = 0 THEN '{"customer": "cus_1a"}' ELSE '{}' END, 'UTF8') FROM generate_series(1, $3::int) AS i`, first, known.Number["shop"], n)
	find, err := redaction.NewMention("cus_1a")
	if err != nil {
		t.Fatal(err)
	}
	for limit, wantPages := range map[int]int{1: 14, 4: 5, 50: 4} {
		var found []string
		pages := 0
		for cursor := ""; ; pages++ {
			page, err := admin.Mentioning(t.Context(), db.Role(t, "operator"), events.Filter{}, []redaction.Find{find}, cursor, limit, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Items {
				found = append(found, e.EventID)
			}
			if cursor = page.Next; cursor == "" {
				break
			}
			if page.SearchedTo.IsZero() {
				t.Error("a page that is not the last does not say how far it has searched")
			}
		}
		if got := fmt.Sprint(found); got != "[e60 e55 e50 e45 e40 e35 e30 e25 e20 e15 e10 e5]" || pages+1 != wantPages {
			t.Errorf("pages of %d: %d pages, want %d, with %s", limit, pages+1, wantPages, got)
		}
	}
}

// TestEvents_emptyMentions_areRefused: a variable that is empty must not list all events as if they mentioned somebody.
func TestEvents_emptyMentions_areRefused(t *testing.T) {
	t.Parallel()
	pool := testkit.Database(t).Role(t, "operator")
	many := strings.Repeat("cus_1a,", redaction.MaxMentions+1)
	for _, mentions := range []string{"", " ", ",", many, "ada"} {
		if _, err := admin.Events(t.Context(), pool, url.Values{"mentions": {mentions}}); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("mentions %q: %v", mentions, err)
		}
	}
}
