package events_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// walk walks the whole log forwards, and returns the number of steps.
func walk(t *testing.T, pool *pgxpool.Pool, f *events.Filter, bound int64) (all []int64, steps int) {
	t.Helper()
	for at := int64(0); at < bound; steps++ {
		ids, end, err := events.Match(t.Context(), pool, f, at, bound)
		testkit.Must(t, err)
		if end <= at || len(ids) > 0 && (ids[0] <= at || ids[len(ids)-1] > end) {
			t.Fatalf("from %d to %d: %d ids from %d to %d", at, end, len(ids), ids[0], ids[len(ids)-1])
		}
		all, at = append(all, ids...), end
	}
	return all, steps
}

// A walk covers everything in bounded steps, however few events match, and continues wherever it
// was stopped.
func TestMatch_fewMatches_stepsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.insertEvents(t, firstDay, 25_000)
	every, err := events.IDsAfter(t.Context(), b.db.Pool, 0, math.MaxInt64, 30_000)
	testkit.Must(t, err)
	whole, steps := walk(t, b.db.Pool, &events.Filter{}, math.MaxInt64)
	if diff := cmp.Diff(every, whole); diff != "" || steps != 3 {
		t.Errorf("%d steps; %s", steps, diff)
	}
	found, steps := walk(t, b.db.Pool, &events.Filter{Key: "k20000"}, math.MaxInt64)
	if len(found) != 1 || found[0] != every[19_999] || steps != 3 {
		t.Errorf("found %d in %d steps", found, steps)
	}
	some, _ := walk(t, b.db.Pool, &events.Filter{IDs: []int64{every[3], 1, every[7], every[24_999]}}, every[10])
	testkit.Equal(t, "some", []int64{every[3], every[7]}, some)
	rest, end, err := events.Match(t.Context(), b.db.Pool, &events.Filter{IDs: []int64{every[3], every[7]}}, every[3],
		every[10])
	if diff := cmp.Diff([]int64{every[7]}, rest); err != nil || diff != "" || end != every[10] {
		t.Errorf("%v, end %d: %s", err, end, diff)
	}
	until, _ := walk(t, b.db.Pool, &events.Filter{Since: firstDay.Add(100 * time.Second),
		Until: firstDay.Add(200 * time.Second)}, every[24_999])
	testkit.Equal(t, "until", every[99:199], until)
}

// An estimate comes from the statistics, and says so. A few events that an index finds are counted.
func TestEstimate_filters_useStatistics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	none, err := events.Estimate(t.Context(), b.db.Pool, &events.Filter{})
	if err != nil || none != (events.Preview{ExactCounts: true}) {
		t.Errorf("an empty log: %+v, %v", none, err)
	}
	small := setup(t)
	small.insertEvents(t, firstDay, 30)
	if few, err := events.Estimate(t.Context(), small.db.Pool, &events.Filter{}); err != nil || few.Events != 30 ||
		!few.ExactCounts {
		t.Errorf("a small log: %+v, %v", few, err)
	}
	const n = 25_000
	b.insertEvents(t, firstDay, n)
	b.db.Exec(t, "ANALYZE events")
	for name, tc := range map[string]struct {
		f         events.Filter
		want      float64
		from, to  int
		estimated bool
	}{
		"all":   {events.Filter{Since: firstDay}, n, 1, n, true},
		"type":  {events.Filter{Since: firstDay, Type: "invoice.paid"}, n / 2, 1, n, true},
		"time":  {events.Filter{Since: firstDay, Until: firstDay.Add(15_000 * time.Second)}, 14_999, 1, 14_999, true},
		"by id": {events.Filter{IDs: []int64{events.FirstID(firstDay.Add(7 * time.Second))}}, 1, 7, 7, false},
	} {
		p, err := events.Estimate(t.Context(), b.db.Pool, &tc.f)
		testkit.Must(t, err)
		if got := float64(p.Events); got < tc.want*0.9 || got > tc.want*1.1 || p.ExactCounts == tc.estimated {
			t.Errorf("%s: %+v, want about %g", name, p, tc.want)
		}
		if !p.From.Equal(firstDay.Add(time.Duration(tc.from)*time.Second)) ||
			!p.To.Equal(firstDay.Add(time.Duration(tc.to)*time.Second)) {
			t.Errorf("%s: from %s to %s", name, p.From, p.To)
		}
		if exact, err := events.Count(t.Context(), b.db.Pool, &tc.f); err != nil || float64(exact.Events) != tc.want ||
			!exact.ExactCounts {
			t.Errorf("%s: counted %+v, %v", name, exact, err)
		}
	}
}

// Outcome filters are counted if few events match, and estimated otherwise. No list of all matches
// is built.
func TestEstimate_outcomeFilters_countOrEstimate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n, most = 25_000, 20_000
	b.insertEvents(t, firstDay, n)
	for _, sql := range []string{
		`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, version,
			attempts, at, rule_version)
  SELECT id, 0, 1, CASE WHEN row_number() OVER (ORDER BY id) <= $1 THEN 7 ELSE 8 END, '', 'invoice', 'x', CASE
  	WHEN row_number() OVER (ORDER BY id) <= $1 THEN 'dead' ELSE 'applied' END,
    'because', NULL, 1, now(), 1 FROM events`,
		`INSERT INTO outcomes SELECT event_id, 3, source, object, account, object_type, object_id, 'dead', reason,
			version, decided_by, attempts, due, at, rule_version
  FROM outcomes WHERE $1 > 0 ORDER BY event_id LIMIT 100`,
	} {
		b.db.Exec(t, sql, most)
	}
	b.db.Exec(t, "ANALYZE events, outcomes")
	for name, tc := range map[string]struct {
		f     events.Filter
		want  float64
		exact bool
	}{
		"dead": {events.Filter{Status: "dead"}, most, false},
		"dead of a time": {events.Filter{Status: "dead", Since: firstDay.Add(15_001 * time.Second)}, most - 15_000,
			true},
		"an object": {events.Filter{Objects: []int64{7}}, most, false},
		"another":   {events.Filter{Objects: []int64{8}}, n - most, true},
		"several":   {events.Filter{Objects: []int64{7, 8}}, n, false},
		"none":      {events.Filter{Objects: []int64{}}, 0, true},
		"dead of an object": {events.Filter{Objects: []int64{7}, Status: "dead", Type: "invoice.paid"}, most / 2,
			false},
	} {
		p, err := events.Estimate(t.Context(), b.db.Pool, &tc.f)
		testkit.Must(t, err)
		if got := float64(p.Events); p.ExactCounts != tc.exact || tc.exact && got != tc.want || got > 4*tc.want ||
			got < tc.want/4 {
			t.Errorf("%s: %+v, want about %g", name, p, tc.want)
		}
		if exact, err := events.Count(t.Context(), b.db.Pool, &tc.f); err != nil || float64(exact.Events) != tc.want ||
			!exact.ExactCounts {
			t.Errorf("%s: counted %+v, %v, want %g", name, exact, err, tc.want)
		}
	}
}

// Each window of a walk reads only its own rows, and a page that is soon full reads few rows, even
// if the table was never analyzed.
func TestMatch_window_readsOnlyItsRows(t *testing.T) {
	t.Parallel()
	const n = 20_000
	b := setup(t)
	b.insertEvents(t, firstDay, 0) // only the partition
	b.db.Exec(t, `ALTER TABLE events_20260301 SET (autovacuum_enabled = false)`)
	b.insertEvents(t, firstDay, n)
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: b.db.URL, Role: "postern_processor", MaxConns: 1})
	testkit.Must(t, err)
	defer pool.Close()
	if ids, _ := walk(t, pool, &events.Filter{}, math.MaxInt64); len(ids) != n {
		t.Fatalf("walked over %d of %d", len(ids), n)
	}
	rowsRead := func() (read int64) {
		flushStatistics(t, pool)
		testkit.Must(t, pool.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables
			WHERE relname = 'events_20260301'`).Scan(&read))
		return read
	}
	walked := rowsRead()
	// once for the ends of windows, once for their events, and once when this test wrote the keys
	if walked > 3*n+n/10 {
		t.Errorf("%d rows read of %d", walked, n)
	}
	// a page that is full after a few events reads few
	if page, err := events.List(t.Context(), pool, events.Filter{Type: "*"}, "", 20); err != nil ||
		len(page.Items) != 20 {
		t.Fatalf("%d events, %v", len(page.Items), err)
	}
	if read := rowsRead() - walked; read > 200 {
		t.Errorf("a page of 20 events read %d rows", read)
	}
}

// The partitions are found with any plan, also with one that reads the names of all tables first.
func TestListPartitions_anyPlan_findsPartitions(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	testkit.Must(t, events.EnsurePartitions(t.Context(), db.Pool, 24*time.Hour))
	c := db.Role(t, "operator").Config()
	c.ConnConfig.RuntimeParams["enable_nestloop"], c.ConnConfig.RuntimeParams["enable_mergejoin"] = "off", "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	testkit.Must(t, err)
	defer pool.Close()
	days, err := events.ListPartitions(t.Context(), pool, &events.Filter{}, 0, 1<<62)
	if err != nil || len(days) == 0 {
		t.Errorf("%d partitions, %v", len(days), err)
	}
}

// A reader that freezes its bound misses no event of 16 writers, while one transaction stays open
// and the clock goes back and forth.
func TestFreezeBound_concurrentAppends_missesNone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	skew := `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT clock_timestamp() - (random() * 120) * interval ''1 ms''
				- (CASE WHEN extract(epoch FROM clock_timestamp())::int % 2 = 0 THEN 2 ELSE 0 END) * interval ''1 s'''`
	b.db.Exec(t, skew)
	b.append(t, b.delivery("x", "first"))
	appends := 4 * time.Second
	if testing.Short() { // the clock goes back in every other second
		appends /= 2
	}
	ctx, stop := context.WithTimeout(t.Context(), appends)
	defer stop()
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := events.Append(t.Context(), b.gateway,
					[]events.Delivery{b.delivery("x", fmt.Sprint(w, "-", i))}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() { b.appendSlowly(t, ctx) })
	read, at := map[int64]bool{}, int64(0)
	walk := func(ctx context.Context) {
		bound, err := events.FreezeBound(ctx, b.operator)
		if err != nil {
			t.Error(err)
			return
		}
		ids, err := events.IDsAfter(t.Context(), b.gateway, at, bound, 1_000_000)
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			read[id] = true
		}
		at = bound
	}
	for ctx.Err() == nil {
		walk(t.Context())
	}
	wg.Wait()
	walk(t.Context())
	if n := b.count(t, "events"); n != len(read) || n < 100 {
		t.Errorf("read %d of %d events", len(read), n)
	}
}

// appendSlowly repeatedly appends in a transaction that commits late.
func (b *testBundle) appendSlowly(t *testing.T, ctx context.Context) {
	pool := b.db.Pool
	for i := 0; ctx.Err() == nil; i++ {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		_, err = tx.Exec(t.Context(), `WITH m AS (SELECT (greatest(clock_ms(), (SELECT ms FROM log_floor) + 1) << 20) |
			(nextval('event_sequence') & 1048575) AS id),
			k AS (INSERT INTO event_keys SELECT $1, sha256($2::bytea), id, '\x00' FROM m)
			INSERT INTO events SELECT id, $1, 'held', 't', '', '', '', NULL, now(), 'webhook', '', '{}', '{}', '\x00',
				id, 0, '' FROM m`, b.source, []byte(fmt.Sprint("held", i)))
		if err != nil {
			t.Error(err)
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestFreezeBound_contextEnds_returnsError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("x", "first"))
	testkit.OpenTx(t, b.db.Pool, `LOCK TABLE events IN ROW EXCLUSIVE MODE`)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := events.FreezeBound(ctx, b.operator); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a wait that ends with its context", err)
	}
}

func TestRegisterSources_otherProvider_isError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"shop": "stripe"}); err == nil {
		t.Error("a source changed its provider")
	}
	registered, err := events.RegisterSources(t.Context(), b.gateway,
		map[string]string{"shop": "shopify", "other": "stripe"})
	if err != nil || registered.Number["shop"] != b.source || registered.Name[registered.Number["other"]] != "other" {
		t.Errorf("%+v, %v", registered, err)
	}
}
