package endtoend_test

import (
	"bytes"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// stored is an event of the log with the name of its source.
type stored struct {
	provider.Stored
	source string
}

// readLog reads all events by source and key; a key that is there twice is an error.
func (b *testBundle) readLog(t *testing.T) map[string]stored {
	t.Helper()
	ids, err := events.After(t.Context(), b.db.Pool, 0, events.FirstID(time.Now().Add(time.Hour)), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	recs, err := events.Read(t.Context(), b.db.Pool, ids, events.AnyBody)
	if err != nil {
		t.Fatal(err)
	}
	names := b.sourceNames(t)
	log := map[string]stored{}
	for _, r := range recs {
		at := names[r.Source] + " " + r.Key
		if _, twice := log[at]; twice {
			t.Errorf("event %s is stored twice", at)
		}
		log[at] = stored{r.Stored, names[r.Source]}
	}
	return log
}

func (b *testBundle) sourceNames(t *testing.T) map[int32]string {
	t.Helper()
	numbers := b.sourceNumbers(t)
	names := make(map[int32]string, len(numbers))
	for name, number := range numbers {
		names[number] = name
	}
	return names
}

func (b *testBundle) sourceNumbers(t *testing.T) map[string]int32 {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT name, number FROM sources`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	numbers := map[string]int32{}
	for rows.Next() {
		var name string
		var number int32
		if err := rows.Scan(&name, &number); err != nil {
			t.Fatal(err)
		}
		numbers[name] = number
	}
	return numbers
}

// checkPromises compares each receipt with the log: the event is there under that id with the body that was sent; of a
// conflict the log holds another body, and this one is kept beside it.
func (b *testBundle) checkPromises(t *testing.T, log map[string]stored) {
	t.Helper()
	conflicts := 0
	for _, p := range b.clients.promises {
		s, ok := log[p.source+" "+p.EventID]
		if p.Spooled {
			p.ID, p.Conflict = strconv.FormatInt(s.ID, 10), !bytes.Equal(s.Body, p.delivery.Body)
		}
		switch {
		case !ok:
			t.Errorf("%s %s was acknowledged and is not stored", p.source, p.EventID)
		case strconv.FormatInt(s.ID, 10) != p.ID:
			t.Errorf("%s %s was acknowledged as %s and is stored as %d", p.source, p.EventID, p.ID, s.ID)
		case bytes.Equal(s.Body, p.delivery.Body) == p.Conflict:
			t.Errorf("%s %s: conflict %t, sent %d bytes, stored %d", p.source, p.EventID, p.Conflict, len(p.delivery.Body), len(s.Body))
		case p.Conflict:
			conflicts++
			var kept int
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM event_conflicts WHERE event = $1 AND body = $2`, s.ID, p.delivery.Body).Scan(&kept); err != nil || kept != 1 {
				t.Errorf("%s %s: the conflicting delivery is kept %d times, %v", p.source, p.EventID, kept, err)
			}
		}
	}
	if conflicts == 0 {
		t.Error("no conflict was seen")
	}
}

// checkMirror makes every object of the log by the pure rule and compares with the table, and statuses that do not depend
// on the order with the ledger.
func (b *testBundle) checkMirror(t *testing.T, log map[string]stored) {
	t.Helper()
	numbers := b.sourceNumbers(t)
	rows := map[versioning.Key]*versioning.Row{}
	want := map[int64]string{}
	for _, s := range log {
		d := doors[s.source]
		o, err := d.provider.Observe(d.source, &s.Stored)
		var in versioning.Input
		if err == nil && o.Ignored == "" {
			in, err = versioning.FromObservation(o, s.ReceivedAt)
		}
		var dead *provider.Dead
		switch {
		case errors.As(err, &dead):
			want[s.ID] = "dead"
			continue
		case err != nil:
			t.Fatal(err)
		case o.Ignored != "":
			want[s.ID] = "ignored"
			continue
		}
		key := versioning.Key{Source: numbers[s.source], Account: o.Account, Type: o.ObjectType, ID: o.ObjectID}
		if rows[key] == nil {
			row := versioning.NewRow()
			rows[key] = &row
		}
		versioning.Apply(rows[key], in)
	}
	b.compareOutcomes(t, want)
	b.compareObjects(t, rows)
}

func (b *testBundle) compareOutcomes(t *testing.T, want map[int64]string) {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT event_id, status, reason FROM outcomes WHERE run = 0`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	dead := 0
	for rows.Next() {
		var id int64
		var status, reason string
		if err := rows.Scan(&id, &status, &reason); err != nil {
			t.Fatal(err)
		}
		final := map[string]string{"dead": "dead", "ignored": "ignored"}[status]
		if final != want[id] || reason == "" {
			t.Errorf("event %d is %s (%s), want %q", id, status, reason, want[id])
		}
		if status == "dead" {
			dead++
		}
	}
	if dead == 0 {
		t.Error("no dead event was seen, and some bodies were no JSON")
	}
}

const compareSQL = `
WITH want AS (
  SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::bigint[], $7::bigint[], $8::int[], $9::bytea[], $10::bool[], $11::bool[], $12::text[])
  AS w(source, account, object_type, object_id, final, at, seen, rank, hash, deleted, ambiguous, state)
)
SELECT coalesce(w.object_type, o.object_type) || ' ' || coalesce(w.object_id, o.object_id), coalesce(w.state, ''), coalesce(o.state::text, '')
FROM want w FULL JOIN objects o USING (source, account, object_type, object_id)
WHERE (w.final, w.at, w.seen, w.rank, w.hash, w.deleted, w.ambiguous, w.state::jsonb)
  IS DISTINCT FROM (o.version_final, o.version_at, o.version_seen, o.version_rank::int, o.state_hash, o.deleted, o.ambiguous, o.state)`

func (b *testBundle) compareObjects(t *testing.T, want map[versioning.Key]*versioning.Row) {
	t.Helper()
	var source []int32
	var account, objectType, id []string
	var final, deleted, ambiguous []bool
	var at, seen []int64
	var rank []int32
	var hash [][]byte
	var state []*string
	for key, row := range want {
		source, account, objectType, id = append(source, key.Source), append(account, key.Account), append(objectType, key.Type), append(id, key.ID)
		v := row.Version
		final, at, seen, rank = append(final, v.Final), append(at, v.At), append(seen, v.Seen), append(rank, int32(v.Rank))
		hash, deleted, ambiguous = append(hash, row.State.Hash[:]), append(deleted, row.State.Deleted), append(ambiguous, row.Ambiguous)
		var text *string
		if row.State.JSON != nil {
			s := string(row.State.JSON)
			text = &s
		}
		state = append(state, text)
	}
	rows, err := b.db.Pool.Query(t.Context(), compareSQL, source, account, objectType, id, final, at, seen, rank, hash, deleted, ambiguous, state)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, should, is string
		if err := rows.Scan(&name, &should, &is); err != nil {
			t.Fatal(err)
		}
		t.Errorf("object %s is\n%s\nand should be\n%s", name, is, should)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d objects compared", len(want))
}
