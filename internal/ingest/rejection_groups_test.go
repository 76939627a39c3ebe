package ingest_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A diagnosis follows from what is stored, and none is given for too few deliveries.
func TestDiagnose_facts_giveProbableCause(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 14, 2, 0, 0, time.UTC)
	one := []ingest.RejectionRemote{{Address: "203.0.113.7", Count: 30}}
	two := append(one, ingest.RejectionRemote{Address: "203.0.113.8", Count: 1})
	for _, c := range []struct {
		name, reason    string
		count, since    int64
		remotes         []ingest.RejectionRemote
		accepted, first time.Duration
		want            string
	}{
		{"secret changed", "wrong_signature", 40, 40, two, -time.Minute, 0,
			"since 2026-01-02 14:02:00 UTC every delivery of stripe is rejected (wrong_signature) and none is " +
				"accepted: the secret was probably changed on one side only"},
		{"secret changed after forgeries", "wrong_signature", 40, 10, two, -time.Minute, -time.Hour,
			"the secret was probably changed on one side only"},
		{"secret changed, one sender", "wrong_signature", 40, 40, one, -time.Minute, 0,
			"on one side only; if 203.0.113.7 is not the provider, probably a forger"},
		{"never accepted", "wrong_signature", 3, 3, two, 0, 0, "none is accepted"},
		{"forger", "wrong_signature", 30, 0, one, time.Minute, 0, "accepted deliveries continue, and all rejected " +
			"ones come from 203.0.113.7: probably a forger, or a sender with another secret"},
		{"forger still active", "wrong_signature", 30, 5, one, time.Minute, 0, "accepted deliveries continue"},
		{"second endpoint", "wrong_signature", 30, 2, two, time.Minute, 0,
			"come from several senders: probably a second endpoint"},
		{"scanner", "missing_signature", 9, 0, one, time.Minute, 0, "probably a scanner"},
		{"proxy", "missing_header", 9, 9, one, -time.Minute, 0, "probably a proxy"},
		{"own clock", "stale_timestamp", 9, 9, one, -time.Minute, 0, "machine's clock is ahead"},
		{"other account", "forbidden_account", 9, 0, two, time.Minute, 0, "other accounts use this endpoint"},
		{"too few", "wrong_signature", 2, 2, one, -time.Minute, 0, ""},
		{"too few since", "wrong_signature", 9, 2, two, -time.Minute, 0, ""},
		{"unknown reason", "other", 9, 9, two, -time.Minute, 0, ""},
	} {
		g := ingest.RejectionGroup{Source: "stripe", Reason: c.reason, Count: c.count, Remotes: c.remotes,
			FirstAt: events.Instant{Time: at.Add(c.first)}}
		if c.accepted != 0 {
			g.AcceptedAt.Time = at.Add(c.accepted)
		}
		if got := g.Diagnose(c.since, at); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Groups count all stored rejections of a source and a reason, and summarize many addresses. The
// last accepted webhook counts, and no event that a reconciliation has added.
func TestGroupRejections_stored_areGrouped(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	number := b.endpoints["stripe"].Number
	b.db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		SELECT $1::int, 'wrong_signature', '', '203.0.113.' || n % 9,
			'2026-01-02T03:04:05Z'::timestamptz + n * interval '1 s', '{}'::jsonb, 'x'::bytea,
			CASE WHEN n < 5 THEN 9 ELSE 1 END FROM generate_series(1, 40) n UNION ALL
		SELECT $1::int, 'wrong_signature', '', '2001:db8:1:' || n || '::1', '2026-01-02T04:00:00Z'::timestamptz, '{}',
			'x', 1
			FROM generate_series(1, 3) n UNION ALL
		SELECT $1::int, 'missing_signature', '', '198.51.100.' || n, '2026-01-02T05:00:00Z'::timestamptz, '{}', 'x', 1
			FROM generate_series(1, 2) n`, number)
	for origin, at := range map[string]string{events.OriginWebhook: "2026-01-02T03:04:09Z",
		events.OriginReconcile: "2026-01-03T00:00:00Z"} {
		received, err := time.Parse(time.RFC3339, at)
		testkit.Must(t, err)
		_, err = events.Append(t.Context(), b.db.Pool, []events.Delivery{{Source: number, ReceivedAt: received,
			Origin: origin, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: []byte("x"),
			Events: []provider.Event{{Key: origin, Type: "x"}}}})
		testkit.Must(t, err)
	}
	page, err := ingest.GroupRejections(t.Context(), b.db.Role(t, "operator"), ingest.RejectionFilter{})
	if err != nil || page.Next != "" || !page.SearchedTo.IsZero() {
		t.Fatal(page, err)
	}
	var got []string
	for _, g := range page.Items {
		diagnosis, _, _ := strings.Cut(g.Diagnosis, " and none")
		got = append(got, fmt.Sprintf("%s %s %d %d %s %s %s %v %d %s", g.Source, g.Reason, g.Count, g.Truncated,
			g.FirstAt, g.LastAt, g.AcceptedAt, g.Remotes, g.MoreRemotes, diagnosis))
	}
	const day = "2026-01-02T"
	testkit.Equal(t, "groups", []string{
		"stripe missing_signature 2 0 " + day + "05:00:00.000000Z " + day + "05:00:00.000000Z " + day +
			"03:04:09.000000Z [{198.51.100.1 1} {198.51.100.2 1}] 0 ",
		"stripe wrong_signature 43 4 " + day + "03:04:06.000000Z " + day + "04:00:00.000000Z " + day +
			"03:04:09.000000Z [{203.0.113.0/24 40} {2001:db8:1::/48 3}] 0 since 2026-01-02 03:04:10 UTC every " +
			"delivery of stripe is rejected (wrong_signature)",
	}, got)
	page, err = ingest.GroupRejections(t.Context(), b.db.Pool, ingest.RejectionFilter{Source: number,
		Reason: "wrong_signature", Since: time.Date(2026, 1, 2, 3, 59, 0, 0, time.UTC)})
	if err != nil || len(page.Items) != 1 || page.Items[0].Count != 3 {
		t.Errorf("%+v %v", page, err)
	}
}

// The groups are read through the primary keys, as far back as the limits.
func TestGroupRejections_plan_usesIndexes(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx := testkit.OpenTx(t, db.Pool, `SET LOCAL enable_seqscan = off`)
	rows, err := tx.Query(t.Context(), "EXPLAIN "+ingest.RejectionGroupsSQL, int64(math.MaxInt64), int64(7), nil, nil,
		nil, nil, 10_000)
	testkit.Must(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	testkit.Must(t, err)
	plan := strings.Join(lines, "\n")
	for _, table := range []string{"events", "rejections"} {
		if strings.Contains(plan, "Seq Scan on "+table) {
			t.Errorf("%s is read completely:\n%s", table, plan)
		}
	}
	if !strings.Contains(plan, "rejections_pkey") || !strings.Contains(plan, "Limit") {
		t.Errorf("%s", plan)
	}
}
