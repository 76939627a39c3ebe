package redaction_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// slow is a provider that lets something happen after an event was read and before anything is locked.
type slow struct {
	sim.Provider
	meanwhile func()
}

func (s slow) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	obs, err := s.Provider.Observe(src, e)
	s.meanwhile()
	return obs, err
}

// slowly is a processor that has read an event when something happens, once.
func (b *testBundle) slowly(t *testing.T, meanwhile func()) *processor.Processor {
	t.Helper()
	proc, err := processor.New(processor.Options{Pool: b.pool, Settings: processor.DefaultSettings, ID: t.Name(), Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: slow{meanwhile: sync.OnceFunc(meanwhile)}}}})
	if err != nil {
		t.Fatal(err)
	}
	return proc
}

// Whoever has read an event before it was redacted, and writes after, writes nothing of it: live, in a replay, in a retry, in a rebuild, in a base.
func TestReadBeforeAndWrittenAfter(t *testing.T) {
	t.Parallel()
	// A redelivery by the stream brings the body along, whatever the log has by then.
	message := func(b *testBundle, id int64, text []byte) stream.Event {
		e := stream.Event{Source: "sim", ObjectType: "thing", ObjectID: "hers"}
		e.ID, e.Key, e.Type, e.Body = id, "k", "thing", text
		return e
	}
	for name, write := range map[string]func(b *testBundle, p *processor.Processor, id int64, text []byte) error{
		"live": func(b *testBundle, p *processor.Processor, id int64, text []byte) error {
			return p.Apply(t.Context(), events.LiveRun, []stream.Event{message(b, id, text)})
		},
		"live alone": func(b *testBundle, p *processor.Processor, id int64, text []byte) error {
			return p.ApplyAlone(t.Context(), events.LiveRun, message(b, id, text))
		},
		"replay": func(_ *testBundle, p *processor.Processor, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(), processor.Target{Run: 70}, []int64{id}, false)
			return err
		},
		"retry": func(_ *testBundle, p *processor.Processor, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(), processor.Target{Again: 71}, []int64{id}, false)
			return err
		},
		"retry alone": func(_ *testBundle, p *processor.Processor, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(), processor.Target{Again: 71}, []int64{id}, true)
			return err
		},
		"rebuild": func(_ *testBundle, p *processor.Processor, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(), processor.Target{Run: 72, Into: versioning.Staged}, []int64{id}, false)
			return err
		},
		"fold": func(_ *testBundle, p *processor.Processor, id int64, _ []byte) error {
			_, err := p.Fold(t.Context(), []int64{id})
			return err
		},
	} {
		for _, before := range []string{"nothing", "applied", "dead"} {
			// What has no outcome is not folded, and what is final not tried alone.
			if slices.Contains([]string{"fold after nothing", "live alone after applied", "live alone after dead", "retry alone after applied"}, name+" after "+before) {
				continue
			}
			t.Run(name+" after "+before, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.event(t, "hers", 1, "somebody@else.org")
				text := body("hers", 5, email)
				id := b.store(t, "hers", text, "k")[0]
				switch before {
				case "applied":
					b.apply(t, 0, id)
				case "dead":
					b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version) VALUES ($1, 0, $2, 0, '', '', '', 'dead', 'of her', 1, now(), 1)`, id, b.source)
				}
				p := b.slowly(t, func() { b.do(t, redaction.Order{Events: []int64{id}}) })
				if name == "fold" && before == "dead" {
					b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version) VALUES ($1, 69, $2, 0, '', '', '', 'applied', '', 1, now(), 1)`, id, b.source)
				}
				if err := write(b, p, id, text); err != nil {
					t.Fatal(err)
				}
				if n := b.rows(t, `SELECT count(*)::text FROM redacted`)[0]; n != "1" {
					t.Fatal("nothing happened meanwhile")
				}
				if left := b.holding(t, "lovelace"); len(left) > 0 {
					t.Errorf("left in %v", left)
				}
				for _, status := range b.rows(t, `SELECT status FROM outcomes WHERE event_id = $1 AND run IN (70, 72)`, id) {
					if status != "ignored" {
						t.Errorf("it is %s", status)
					}
				}
			})
		}
	}
}

// rebuilt does what a rebuild does that begins now and is swapped: bases, then the log.
func (b *testBundle) rebuilt(t *testing.T, run int64) {
	t.Helper()
	b.exec(t, `TRUNCATE staged`)
	b.exec(t, `INSERT INTO staged SELECT * FROM bases`)
	if _, err := b.proc.ApplyStored(t.Context(), processor.Target{Run: run, Into: versioning.Staged}, b.stored(t), false); err != nil {
		t.Fatal(err)
	}
	b.sameStaged(t)
}

func (b *testBundle) stored(t *testing.T) (ids []int64) {
	t.Helper()
	for _, id := range b.rows(t, `SELECT id::text FROM events ORDER BY id`) {
		n, ok := events.ParseID(id)
		if !ok {
			t.Fatal(id)
		}
		ids = append(ids, n)
	}
	return ids
}

// sameStaged wants that a swap would change nothing.
func (b *testBundle) sameStaged(t *testing.T) {
	t.Helper()
	same := func(table string) []string {
		return b.rows(t, `SELECT (to_jsonb(o) - 'revision' - 'last_event_id' - 'created_at' - 'updated_at' - 'look_after')::text FROM `+table+` o ORDER BY object_id`)
	}
	if diff := cmp.Diff(same("objects"), same("staged")); diff != "" {
		t.Errorf("a rebuild differs: %s", diff)
	}
}

// What a deletion without a state decided stays so for a rebuild: what it deleted does not come back.
func TestRedactedDeletionStays(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"id": "d", "type": "thing.deleted", "object_id": "hers", "rank": 1, "time": %d, "unit": 1, "deleted": true, "for": "` + email + `"}`,
		`{"id": "d", "type": "thing.deleted", "object_id": "hers", "rank": 1, "time": %d, "unit": 1, "deleted": true, "object": null, "for": "` + email + `"}`,
	} {
		b := setup(t)
		b.event(t, "hers", 1, "somebody@else.org")
		b.n++
		id := b.store(t, "hers", fmt.Appendf(nil, text, sim.Start+9), "d")[0]
		b.apply(t, 0, id)
		if got := b.rows(t, `SELECT deleted || ' ' || coalesce(state::text, 'null') || ' ' || tie_set FROM objects`); len(got) != 1 || got[0][:4] != "true" {
			t.Fatalf("not deleted: %v %v", got, b.rows(t, `SELECT status || reason FROM outcomes`))
		}
		b.do(t, redaction.Order{Events: []int64{id}})
		b.rebuilt(t, 900)
		if got := b.rows(t, `SELECT (deleted)::text FROM staged`); !slices.Equal(got, []string{"true"}) {
			t.Errorf("after a rebuild: deleted %v", got)
		}
	}
}

// Of a version that several events tell, what the others say stays, also for a rebuild that is past them and in a base that has them.
func TestOthersOfTheVersionStay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.event(t, "tied", 5, "tied@else.org")
	b.exec(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at) VALUES ('rebuild', jsonb_build_object('source', $1::int), 'me', '', 'paused', '', '{}', now(), now())`, b.source)
	hers := b.event(t, "tied", 5, email)
	if _, err := b.proc.ApplyStored(t.Context(), processor.Target{Run: 900, Into: versioning.Staged}, b.stored(t), false); err != nil {
		t.Fatal(err)
	}
	if _, err := b.proc.Fold(t.Context(), []int64{other, hers}); err != nil {
		t.Fatal(err)
	}
	b.do(t, redaction.Order{Events: []int64{hers}})
	if got := b.state(t, "tied"); got != "tied@else.org" {
		t.Errorf("the mirror has %s", got)
	}
	b.sameStaged(t)
	b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = now() WHERE job = 'rebuild'`)
	b.exec(t, `TRUNCATE staged`) // the log is gone up to here
	b.exec(t, `INSERT INTO staged SELECT * FROM bases`)
	b.sameStaged(t)
}

// A transaction of a rebuild that is under way when an object is redacted ends before, or sees it.
func TestRedactedBetweenReadingAndStaging(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, "somebody@else.org")
	id := b.event(t, "hers", 5, email)
	var once sync.Once
	guard := func(context.Context, pgx.Tx) error {
		once.Do(func() {
			b.do(t, redaction.Order{Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "hers"}}})
		})
		return nil
	}
	if _, err := b.proc.ApplyStored(t.Context(), processor.Target{Run: 900, Into: versioning.Staged, Guard: guard}, []int64{id}, false); err != nil {
		t.Fatal(err)
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
}

// A processor that reads an event otherwise than the one that redacts it has its lock all the same.
func TestRedactedByWhoCannotReadIt(t *testing.T) {
	t.Parallel()
	for into, table := range map[versioning.Table]string{versioning.Mirror: "objects", versioning.Staged: "staged"} {
		b := setup(t)
		b.event(t, "hers", 1, "somebody@else.org")
		b.exec(t, `INSERT INTO staged SELECT * FROM objects`)
		id := b.store(t, "hers", body("hers", 5, email), "k")[0]
		row, err := b.db.Pool.Begin(t.Context()) // the replay has its locks and waits here
		if err != nil {
			t.Fatal(err)
		}
		if _, err := row.Exec(t.Context(), `SELECT FROM `+table+` FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		waits := func(where string) {
			testkit.Eventually(t, time.Minute, func() error {
				if b.rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND `+where)[0] == "0" {
					return errors.New("nobody waits: " + where)
				}
				return nil
			})
		}
		applied, redacted := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := b.proc.ApplyStored(t.Context(), processor.Target{Run: 70, Into: into}, []int64{id}, false)
			applied <- err
		}()
		waits(`query LIKE '%` + table + `%'`)
		other, err := processor.New(processor.Options{Pool: b.pool, Settings: processor.DefaultSettings, ID: t.Name(), Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		b.ask(t, redaction.Order{Events: []int64{id}})
		h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := (&redaction.Runner{Pool: b.pool, Processor: other}).Carry(t.Context(), h, slog.New(slog.DiscardHandler))
			redacted <- err
		}()
		waits(`query LIKE '%redact_events%'`)
		if err := row.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-applied, <-redacted); err != nil {
			t.Fatal(err)
		}
		if left := b.holding(t, "lovelace"); len(left) > 0 {
			t.Errorf("left in %v", left)
		}
	}
}

// A conflict that is being kept while its event is redacted is cleared with it.
func TestConflictKeptMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.event(t, "hers", 1, email)
	tx, err := b.db.Role(t, "gateway").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at, headers, verification, body)
		VALUES ($1, $2, 'k1', 'thing', '', '\x00', now(), '{}', '{}', $3)`, b.source, id, []byte(email)); err != nil {
		t.Fatal(err)
	}
	b.ask(t, redaction.Order{Events: []int64{id}})
	h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
	if err != nil {
		t.Fatal(err)
	}
	redacted := make(chan error, 1)
	go func() {
		_, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(t.Context(), h, slog.New(slog.DiscardHandler))
		redacted <- err
	}()
	testkit.Eventually(t, time.Minute, func() error {
		select {
		case err := <-redacted:
			t.Fatalf("it does not wait: %v", err)
		default:
		}
		if b.rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%redact_events%'`)[0] == "0" {
			return errors.New("nobody waits")
		}
		return nil
	})
	if err := errors.Join(tx.Commit(t.Context()), <-redacted); err != nil {
		t.Fatal(err)
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 || h.Counts[redaction.CountConflicts] != 1 {
		t.Errorf("left in %v, %v", left, h.Counts)
	}
}
