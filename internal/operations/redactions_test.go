package operations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/testkit"
)

// paramsOf returns parameters from alternating names and values.
func paramsOf(pairs ...string) map[string]string {
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	return values
}

// parseRedaction returns the parameters of the job for the given parameters.
func parseRedaction(t *testing.T, pool *pgxpool.Pool, given map[string]string) (*redaction.Params, *redaction.Request,
	error) {
	t.Helper()
	var p operations.RedactParams
	if err := operations.Parse(&p, given); err != nil {
		return nil, nil, err
	}
	return p.Redaction(t.Context(), pool)
}

// An empty account selects those without one, as in every list, and an absent one selects all. An
// object without a row has the given account and no other.
func TestParseRedaction_account_mustBeClear(t *testing.T) {
	t.Parallel()
	db, sources := withSources(t)
	operator := db.Role(t, "operator")
	var ids []int64
	for i, account := range []string{"", "a.myshopify.com", "b.myshopify.com"} {
		text := `{"id":7,"email":"x@y.z","a":"` + account + `"}`
		ids = append(ids, store(t, db, sources["shop"], text, provider.Event{Key: fmt.Sprint("k", i),
			Type: "customers/update", Account: account, ObjectType: "customer", ObjectID: "7",
			Fingerprint: provider.BodyFingerprint([]byte(text))}))
	}
	byValue := []string{"source", "shop", "path", "$.email", "value", "x@y.z"}
	for _, c := range []struct {
		values map[string]string
		events int64
	}{
		{paramsOf(byValue...), 3},
		{paramsOf(append(byValue, "account", "")...), 1},
		{paramsOf(append(byValue, "account", "a.myshopify.com")...), 1},
		{paramsOf(append(byValue, "account", "nobody's")...), 0},
		{paramsOf("source", "shop", "object_type", "customer", "object", "7", "account", ""), 1},
		{paramsOf("source", "shop", "object_type", "customer", "object", "7", "account", "b.myshopify.com"), 1},
		{paramsOf("event", "k1", "source", "shop"), 1},
	} {
		o, _, err := parseRedaction(t, operator, c.values)
		testkit.Must(t, err)
		p, err := redaction.BuildPreview(t.Context(), operator, o, nil)
		if testkit.Must(t, err); p.Events != c.events {
			t.Errorf("%v: %d events, want %d", c.values, p.Events, c.events)
		}
	}
	o, _, err := parseRedaction(t, operator, paramsOf("event", "k1"))
	testkit.Must(t, err)
	want := &redaction.Params{Events: ids[1:2], Description: map[string]string{"event": "k1"}}
	testkit.Equal(t, "parameters", want, o)
}

// A parameter without an effect is rejected, and so is an object whose account is unknown.
func TestParseRedaction_ineffectiveParams_areRejected(t *testing.T) {
	t.Parallel()
	db, _ := withSources(t)
	operator := db.Role(t, "operator")
	for _, c := range []struct {
		values map[string]string
		says   string
	}{
		{paramsOf("source", "shop", "object_type", "customer", "object", "7"),
			"object customer 7 of this source is not in the mirror: check type and id"},
		{paramsOf("event", "a", "account", "nonsense"), "account has no effect together with event"},
		{paramsOf("event", "a", "object_type", "customer"), "object_type has no effect together with event"},
		{paramsOf("event", "a", "value", "x"), "value has no effect together with event"},
		{paramsOf("source", "shop", "object_type", "customer", "object", "7", "value", "x"),
			"value has no effect together with object"},
		{paramsOf("source", "shop", "path", "$.a", "value", "x", "object_type", "customer"),
			"object_type has no effect together with path"},
		{paramsOf("from_event", "1", "account", "a"), "account has no effect together with from_event"},
		{paramsOf("from_event", "1", "answers", "1"), "answers has no effect together with from_event"},
		{paramsOf("from_event", "1", "event", "1"), "use one selector"},
		{paramsOf("event", "a", "path", "$.a"), "use one selector"},
		{paramsOf("object_type", "customer", "reason", "r"), "select what to redact"},
		{paramsOf("object_type", "customer", "object", "7"), "an object needs source and object_type"},
		{paramsOf("path", "$.a", "value", "x"), "name the source"},
		{paramsOf("event", "a", "answers", "x"), "not an event id of Postern"},
	} {
		if o, _, err := parseRedaction(t, operator, c.values); !errors.Is(err, events.ErrInvalid) ||
			!strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%v: %+v, %v; want it to say %q", c.values, o, err, c.says)
		}
	}
}

// mentionLog is a database with n events of the source shop in a log of a minute. Those that an SQL
// condition on their number i selects mention cus_1a.
func mentionLog(t *testing.T, n int, mentioned string) *testkit.DB {
	t.Helper()
	db, sources := withSources(t)
	first := events.FirstID(time.Now().Add(-time.Minute))
	db.Exec(t, `SELECT ensure_partitions($1, $1)`, events.Time(first).UnixMilli())
	db.Exec(t, `INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, received_at,
		origin, api_version, headers, verification, fingerprint,
		delivery_id, delivery_index, body) SELECT $1::bigint + i, $2, 'e' || i, 't', '', '', '', now(), 'webhook', '',
			'{}', '{}', '', $1::bigint + i, 0,
		convert_to(CASE WHEN `+mentioned+` THEN '{"customer": "cus_1a"}' ELSE '{"customer": "cus_1ab"}' END, 'UTF8')
			FROM generate_series(1, $3::int) AS i`, first, sources["shop"], n)
	return db
}

// collect reads all pages of a search, and returns the keys of the events and the number of pages.
func collect(t *testing.T, read func(cursor string) (events.Page[events.Item], error)) (keys string, pages int) {
	t.Helper()
	var found []string
	for cursor := ""; ; {
		page, err := read(cursor)
		testkit.Must(t, err)
		for _, e := range page.Items {
			found = append(found, e.EventID)
		}
		if pages++; page.Next == "" {
			if !page.SearchedTo.IsZero() {
				t.Errorf("the last of %d pages has searched to %s", pages, page.SearchedTo)
			}
			return strings.Join(found, " "), pages
		}
		if page.SearchedTo.IsZero() {
			t.Error("a page that is not the last does not say how far it has searched")
		}
		cursor = page.Next
	}
}

// TestEvents_mentions_searchAPageOfTheLogAtATime has mentions at both ends of a log that is longer
// than one page searches.
func TestEvents_mentions_searchAPageOfTheLogAtATime(t *testing.T) {
	t.Parallel()
	operator := mentionLog(t, 30_000, "i IN (1, 2, 30000)").Role(t, "operator")
	params := operations.EventParams{Mentions: new("cus_1a")}
	params.Source = "shop"
	found, pages := collect(t, func(cursor string) (events.Page[events.Item], error) {
		params.Cursor = cursor
		return operations.Events(t.Context(), operator, params)
	})
	if found != "e30000 e2 e1" || pages == 1 {
		t.Errorf("found %s on %d pages", found, pages)
	}
}

// TestEvents_mentions_outOfTime_endThePageAfterAFewBodies: the bodies of one page may take longer
// than the time limit.
func TestEvents_mentions_outOfTime_endThePageAfterAFewBodies(t *testing.T) {
	t.Parallel()
	operator := mentionLog(t, 60, "i % 5 = 0").Role(t, "operator")
	find, err := redaction.NewMentionMatcher("cus_1a")
	testkit.Must(t, err)
	atPath, err := redaction.NewValueMatcher("$.customer", "cus_1a")
	testkit.Must(t, err)
	for limit, want := range map[int]int{1: 14, 4: 5, 50: 4} {
		found, pages := collect(t, func(cursor string) (events.Page[events.Item], error) {
			return operations.SearchBodies(t.Context(), operator, events.Filter{},
				[][]redaction.ValueMatcher{{find}, {atPath}}, cursor, limit, 0)
		})
		if found != "e60 e55 e50 e45 e40 e35 e30 e25 e20 e15 e10 e5" || pages != want {
			t.Errorf("pages of %d: %d pages, want %d, with %s", limit, pages, want, found)
		}
	}
}

// TestEvents_emptyMentions_areRejected: an empty variable must not list all events as if they
// mentioned a person.
func TestEvents_emptyMentions_areRejected(t *testing.T) {
	t.Parallel()
	pool := testkit.Database(t).Role(t, "operator")
	many := strings.Repeat("cus_1a,", redaction.MaxMentions+1)
	for _, mentions := range []string{"", " ", ",", many, "ada"} {
		if _, err := operations.Events(t.Context(), pool, operations.EventParams{Mentions: &mentions}); !errors.Is(err,
			events.ErrInvalid) {
			t.Errorf("mentions %q: %v", mentions, err)
		}
	}
}
