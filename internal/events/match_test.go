package events_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// walk walks the whole log upwards and says in how many steps.
func walk(t *testing.T, pool *pgxpool.Pool, f *events.Filter, bound int64) (all []int64, steps int) {
	t.Helper()
	for at := int64(0); at < bound; steps++ {
		ids, end, err := events.Match(t.Context(), pool, f, at, bound)
		if err != nil {
			t.Fatal(err)
		}
		if end <= at || len(ids) > 0 && (ids[0] <= at || ids[len(ids)-1] > end) {
			t.Fatalf("from %d to %d: %d ids from %d to %d", at, end, len(ids), ids[0], ids[len(ids)-1])
		}
		all, at = append(all, ids...), end
	}
	return all, steps
}

// A walk passes over everything in steps that are bounded, however little the filter chooses, and goes on from wherever it was stopped.
func TestWalkInSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.log(t, listDay, 25_000)
	every, err := events.After(t.Context(), b.db.Pool, 0, math.MaxInt64, 30_000)
	if err != nil {
		t.Fatal(err)
	}
	whole, steps := walk(t, b.db.Pool, &events.Filter{}, math.MaxInt64)
	if diff := cmp.Diff(every, whole); diff != "" || steps != 3 {
		t.Errorf("%d steps; %s", steps, diff)
	}
	found, steps := walk(t, b.db.Pool, &events.Filter{Key: "k20000"}, math.MaxInt64)
	if len(found) != 1 || found[0] != every[19_999] || steps != 3 {
		t.Errorf("found %d in %d steps", found, steps)
	}
	some, _ := walk(t, b.db.Pool, &events.Filter{IDs: []int64{every[3], 1, every[7], every[24_999]}}, every[10])
	if diff := cmp.Diff([]int64{every[3], every[7]}, some); diff != "" {
		t.Error(diff)
	}
	rest, end, err := events.Match(t.Context(), b.db.Pool, &events.Filter{IDs: []int64{every[3], every[7]}}, every[3], every[10])
	if diff := cmp.Diff([]int64{every[7]}, rest); err != nil || diff != "" || end != every[10] {
		t.Errorf("%v, end %d: %s", err, end, diff)
	}
	until, _ := walk(t, b.db.Pool, &events.Filter{Since: listDay.Add(100 * time.Second), Until: listDay.Add(200 * time.Second)}, every[24_999])
	if diff := cmp.Diff(every[99:199], until); diff != "" {
		t.Error(diff)
	}
}

// An estimate comes from the statistics, and says so; few that an index finds are counted.
func TestEstimates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	none, err := events.Estimate(t.Context(), b.db.Pool, &events.Filter{})
	if err != nil || none != (events.Preview{Exact: true}) {
		t.Errorf("an empty log: %+v, %v", none, err)
	}
	small := setup(t)
	small.log(t, listDay, 30)
	if few, err := events.Estimate(t.Context(), small.db.Pool, &events.Filter{}); err != nil || few.Events != 30 || !few.Exact {
		t.Errorf("a small log: %+v, %v", few, err)
	}
	const n = 25_000
	b.log(t, listDay, n)
	if _, err := b.db.Pool.Exec(t.Context(), "ANALYZE events"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		f         events.Filter
		want      float64
		from, to  int
		estimated bool
	}{
		"all":   {events.Filter{Since: listDay}, n, 1, n, true},
		"type":  {events.Filter{Since: listDay, Type: "invoice.paid"}, n / 2, 1, n, true},
		"time":  {events.Filter{Since: listDay, Until: listDay.Add(15_000 * time.Second)}, 14_999, 1, 14_999, true},
		"by id": {events.Filter{IDs: []int64{events.FirstID(listDay.Add(7 * time.Second))}}, 1, 7, 7, false},
	} {
		p, err := events.Estimate(t.Context(), b.db.Pool, &tc.f)
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(p.Events); got < tc.want*0.9 || got > tc.want*1.1 || p.Exact == tc.estimated {
			t.Errorf("%s: %+v, want about %g", name, p, tc.want)
		}
		if !p.From.Equal(listDay.Add(time.Duration(tc.from)*time.Second)) || !p.To.Equal(listDay.Add(time.Duration(tc.to)*time.Second)) {
			t.Errorf("%s: from %s to %s", name, p.From, p.To)
		}
		if exact, err := events.Count(t.Context(), b.db.Pool, &tc.f); err != nil || float64(exact.Events) != tc.want || !exact.Exact {
			t.Errorf("%s: counted %+v, %v", name, exact, err)
		}
	}
}

// What only the ledger of outcomes tells is counted where it is little, and estimated where it is much: nothing makes a list of all of it.
func TestEstimatesByOutcome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n, most = 25_000, 20_000
	b.log(t, listDay, n)
	for _, sql := range []string{
		`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, version, attempts, at, rule_version)
  SELECT id, 0, 1, CASE WHEN row_number() OVER (ORDER BY id) <= $1 THEN 7 ELSE 8 END, '', 'invoice', 'x', CASE WHEN row_number() OVER (ORDER BY id) <= $1 THEN 'dead' ELSE 'applied' END,
    'because', NULL, 1, now(), 1 FROM events`,
		`INSERT INTO outcomes SELECT event_id, 3, source, object, account, object_type, object_id, 'dead', reason, version, decided_by, attempts, due, at, rule_version
  FROM outcomes WHERE $1 > 0 ORDER BY event_id LIMIT 100`,
	} {
		if _, err := b.db.Pool.Exec(t.Context(), sql, most); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.db.Pool.Exec(t.Context(), "ANALYZE events, outcomes"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		f     events.Filter
		want  float64
		exact bool
	}{
		"dead":              {events.Filter{Status: "dead"}, most, false},
		"dead of a time":    {events.Filter{Status: "dead", Since: listDay.Add(15_001 * time.Second)}, most - 15_000, true},
		"an object":         {events.Filter{Objects: []int64{7}}, most, false},
		"another":           {events.Filter{Objects: []int64{8}}, n - most, true},
		"several":           {events.Filter{Objects: []int64{7, 8}}, n, false},
		"none":              {events.Filter{Objects: []int64{}}, 0, true},
		"dead of an object": {events.Filter{Objects: []int64{7}, Status: "dead", Type: "invoice.paid"}, most / 2, false},
	} {
		p, err := events.Estimate(t.Context(), b.db.Pool, &tc.f)
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(p.Events); p.Exact != tc.exact || tc.exact && got != tc.want || got > 4*tc.want || got < tc.want/4 {
			t.Errorf("%s: %+v, want about %g", name, p, tc.want)
		}
		if exact, err := events.Count(t.Context(), b.db.Pool, &tc.f); err != nil || float64(exact.Events) != tc.want || !exact.Exact {
			t.Errorf("%s: counted %+v, %v, want %g", name, exact, err, tc.want)
		}
	}
}
