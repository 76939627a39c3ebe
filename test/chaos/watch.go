package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// watcher reads the mirror repeatedly during the faults, as a reader does that follows the primary.
// It remembers the last state of each object. No object may be seen to go back, even if its final
// state is correct.
type watcher struct {
	pool *pgxpool.Pool
	// reads counts the successful reads and missed the failed ones. passes counts how often all
	// objects were read.
	reads, missed, passes atomic.Int64

	// The fields below belong to one goroutine. Others may read them after it has ended.
	known map[versioning.Key]*snapshot
	// after is the key after which the next page begins.
	after versioning.Key
	// regressions describes each object that went back, in the order in which this was seen. err is
	// the error of the last failed read.
	regressions []string
	err         error

	stop context.CancelFunc
	done chan struct{}
}

// snapshot is an object as it was read.
type snapshot struct {
	overwrittenAt int64
	version       versioning.Version
	revision      int64
	// members is the number of tied states. overflow means that there are more than are stored.
	members                      int
	overflow, deleted, ambiguous bool
	hash, exact                  [8]byte
	// pass is the last pass in which the object was read.
	pass int64
}

// regression explains why an object that was read as s may not be read as now later; "" if it may.
func (s *snapshot) regression(now *snapshot) string {
	order := cmp.Or(cmp.Compare(now.overwrittenAt, s.overwrittenAt), now.version.Compare(s.version))
	switch {
	case order < 0:
		return fmt.Sprintf("from version %v to %v", s.version, now.version)
	case now.revision < s.revision:
		return fmt.Sprintf("from revision %d to %d", s.revision, now.revision)
	case now.revision == s.revision && (now.exact != s.exact || now.deleted != s.deleted ||
		now.ambiguous != s.ambiguous):
		return fmt.Sprintf("to another state (deleted %t, was %t) under revision %d", now.deleted, s.deleted,
			s.revision)
	case order > 0 || s.overflow:
		return ""
	case now.members < s.members:
		return fmt.Sprintf("from %d states of version %v to %d", s.members, s.version, now.members)
	case now.members == s.members && (now.hash != s.hash || now.deleted != s.deleted):
		return fmt.Sprintf("to another state (deleted %t, was %t) of version %v, and no event has that state",
			now.deleted, s.deleted, s.version)
	}
	return ""
}

const (
	// readEvery is the interval between two reads. readWithin limits one read: a reader reconnects
	// if the database stalls.
	readEvery, readWithin = 300 * ms, 3 * sec
	// pageSize is how many objects a read takes in the order of their keys. It also takes the
	// objects of that many newest events.
	pageSize = 2000
)

// watch starts a watcher.
func watch(ctx context.Context, url string) (*watcher, error) {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, AppName: "chaos watcher", MaxConns: 1, Lazy: true})
	if err != nil {
		return nil, err
	}
	w := &watcher{pool: pool, known: map[versioning.Key]*snapshot{}, done: make(chan struct{})}
	ctx, w.stop = context.WithCancel(ctx)
	go w.run(ctx)
	return w, nil
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.done)
	defer w.pool.Close()
	for sleep(ctx, readEvery) {
		if err := w.read(ctx); err != nil && ctx.Err() == nil {
			w.missed.Add(1)
			w.err = err
		}
	}
}

// end stops the watcher. It returns an error if not all objects were read at least once.
func (w *watcher) end() error {
	w.stop()
	<-w.done
	if w.passes.Load() == 0 {
		return errors.Join(fmt.Errorf("not all objects were read, in %d reads", w.reads.Load()), w.err)
	}
	return nil
}

// waitForPasses waits until all objects were read more times.
func (w *watcher) waitForPasses(ctx context.Context, more int64) error {
	for until := w.passes.Load() + more; w.passes.Load() < until; {
		if !sleep(ctx, readEvery) {
			return ctx.Err()
		}
	}
	return nil
}

// found is an object in the result of a read.
type found struct {
	key versioning.Key
	now snapshot
}

// read reads some objects and compares them with their last snapshots. It counts only after the
// standby has the transaction: PostgreSQL shows commits that it may lose with the primary, and then
// an object may go back.
func (w *watcher) read(ctx context.Context) error {
	var newest, paged []found
	err := postgres.InTx(ctx, w.pool, "read the mirror", readWithin,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			if newest, err = readSnapshots(ctx, tx, newestSQL); err != nil {
				return err
			}
			if paged, err = readSnapshots(ctx, tx, pageSQL, w.after.Source, w.after.Account, w.after.Type,
				w.after.ID); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "SELECT pg_logical_emit_message(true, 'chaos', '')")
			return err
		})
	if err != nil {
		return err
	}
	w.compare(newest)
	w.compare(paged)
	w.reads.Add(1)
	if len(paged) == pageSize {
		w.after = paged[pageSize-1].key
		return nil
	}
	w.endPass()
	return nil
}

const snapshotSQL = `SELECT o.source, o.account, o.object_type, o.object_id, o.overwritten_at, o.version_final,
	o.version_at, o.version_seen, o.version_rank, o.revision, jsonb_array_length(o.tied_states), o.overflow,
  o.deleted, o.ambiguous, o.state_hash, o.exact_hash `

const pageSQL = snapshotSQL + `FROM objects o WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4)
	ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT 2000`

// newestSQL reads the objects of the newest events with an outcome. Most changes concern these.
const newestSQL = snapshotSQL + `FROM (SELECT DISTINCT e.source, e.account, e.object_type, e.object_id
  FROM (SELECT * FROM outcomes WHERE run = 0 ORDER BY event_id DESC LIMIT 2000) e) e
CROSS JOIN LATERAL (SELECT o.* FROM objects o WHERE o.source = e.source AND o.account = e.account
	AND o.object_type = e.object_type AND o.object_id = e.object_id LIMIT 1) o`

func readSnapshots(ctx context.Context, tx pgx.Tx, sql string, args ...any) (all []found, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	var f found
	var hash, exact []byte
	k, s := &f.key, &f.now
	_, err = pgx.ForEachRow(rows, []any{&k.Source, &k.Account, &k.Type, &k.ID, &s.overwrittenAt, &s.version.Final,
		&s.version.At, &s.version.Seen, &s.version.Rank, &s.revision, &s.members, &s.overflow,
		&s.deleted, &s.ambiguous, &hash, &exact}, func() error {
		copy(s.hash[:], hash)
		copy(s.exact[:], exact)
		all = append(all, f)
		return nil
	})
	return all, err
}

// compare checks that each object may follow its last snapshot, and stores the new one.
func (w *watcher) compare(all []found) {
	pass := w.passes.Load()
	for i := range all {
		f := &all[i]
		f.now.pass = pass
		was, ok := w.known[f.key]
		if !ok {
			was = &snapshot{}
			w.known[f.key] = was
		} else if why := was.regression(&f.now); why != "" {
			w.regressions = append(w.regressions, fmt.Sprintf("%v went back %s", f.key, why))
		}
		*was = f.now
	}
}

// endPass ends a pass. An object that was not read in it has disappeared.
func (w *watcher) endPass() {
	pass := w.passes.Load()
	for key, s := range w.known {
		if s.pass < pass {
			w.regressions = append(w.regressions, fmt.Sprintf("%v has disappeared; its last version was %v", key,
				s.version))
			delete(w.known, key)
		}
	}
	w.after = versioning.Key{}
	w.passes.Add(1)
}
