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

// watcher looks at the mirror again and again while things fail, as a reader does who follows the
// primary, and remembers each object as it was last seen: no object may be seen to go back,
// whatever it is like in the end.
type watcher struct {
	pool *pgxpool.Pool
	// looks are those that count, missed those that found no database; circles are how often all
	// objects were looked at.
	looks, missed, circles atomic.Int64

	// What follows is for one goroutine, and for others once it has ended.
	known map[versioning.Key]*sight
	// after is where the next page begins.
	after versioning.Key
	// back says of each object that went back what was seen, in the order in which it was; err is
	// the last reason for a look that was missed.
	back []string
	err  error

	stop context.CancelFunc
	done chan struct{}
}

// sight is an object as it was seen.
type sight struct {
	settled  int64
	version  versioning.Version
	revision int64
	// members is how many states the version has; overflow: there were more than are kept.
	members                      int
	overflow, deleted, ambiguous bool
	hash, exact                  [8]byte
	// circle is the one in which it was last seen.
	circle int64
}

// older says why an object that was seen as s may not be seen as now afterwards; "" where it may.
func (s *sight) older(now *sight) string {
	order := cmp.Or(cmp.Compare(now.settled, s.settled), now.version.Compare(s.version))
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
		return fmt.Sprintf("to another state (deleted %t, was %t) of version %v, and no event brought it", now.deleted,
			s.deleted, s.version)
	}
	return ""
}

const (
	// lookEvery spaces looks, lookWithin bounds one: a reader whose database hangs connects again.
	lookEvery, lookWithin = 300 * ms, 3 * sec
	// atOnce is how many objects a look takes in the order of their keys, and of how many of the
	// newest events beside them.
	atOnce = 2000
)

// watch begins to look.
func watch(ctx context.Context, url string) (*watcher, error) {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, AppName: "chaos watcher", MaxConns: 1, Lazy: true})
	if err != nil {
		return nil, err
	}
	w := &watcher{pool: pool, known: map[versioning.Key]*sight{}, done: make(chan struct{})}
	ctx, w.stop = context.WithCancel(ctx)
	go w.run(ctx)
	return w, nil
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.done)
	defer w.pool.Close()
	for sleep(ctx, lookEvery) {
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			w.missed.Add(1)
			w.err = err
		}
	}
}

// end stops the looking, and fails where it has seen too little to say anything.
func (w *watcher) end() error {
	w.stop()
	<-w.done
	if w.circles.Load() == 0 {
		return errors.Join(fmt.Errorf("not all objects were looked at once, in %d looks", w.looks.Load()), w.err)
	}
	return nil
}

// rounds waits until all objects were looked at so many times more.
func (w *watcher) rounds(ctx context.Context, more int64) error {
	for until := w.circles.Load() + more; w.circles.Load() < until; {
		if !sleep(ctx, lookEvery) {
			return ctx.Err()
		}
	}
	return nil
}

// found is an object in a look.
type found struct {
	key versioning.Key
	now sight
}

// look reads some objects and compares them with how they were. What is read counts only when the
// standby has it: PostgreSQL shows commits that it may lose with the primary (decision 44), and
// they may go back then.
func (w *watcher) look(ctx context.Context) error {
	var newest, paged []found
	err := postgres.InTx(ctx, w.pool, "look at the mirror", lookWithin,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			if newest, err = read(ctx, tx, newestSQL); err != nil {
				return err
			}
			if paged, err = read(ctx, tx, pageSQL, w.after.Source, w.after.Account, w.after.Type,
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
	w.looks.Add(1)
	if len(paged) == atOnce {
		w.after = paged[atOnce-1].key
		return nil
	}
	w.round()
	return nil
}

const sightSQL = `SELECT o.source, o.account, o.object_type, o.object_id, o.settled, o.version_final, o.version_at,
	o.version_seen, o.version_rank, o.revision, jsonb_array_length(o.tie_set), o.overflow,
  o.deleted, o.ambiguous, o.state_hash, o.exact_hash `

const pageSQL = sightSQL + `FROM objects o WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4)
	ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT 2000`

// newestSQL reads the objects of the newest events that have an outcome: most of what changes.
const newestSQL = sightSQL + `FROM (SELECT DISTINCT e.source, e.account, e.object_type, e.object_id
  FROM (SELECT * FROM outcomes WHERE run = 0 ORDER BY event_id DESC LIMIT 2000) e) e
CROSS JOIN LATERAL (SELECT o.* FROM objects o WHERE o.source = e.source AND o.account = e.account
	AND o.object_type = e.object_type AND o.object_id = e.object_id LIMIT 1) o`

func read(ctx context.Context, tx pgx.Tx, sql string, args ...any) (all []found, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	var f found
	var hash, exact []byte
	k, s := &f.key, &f.now
	_, err = pgx.ForEachRow(rows, []any{&k.Source, &k.Account, &k.Type, &k.ID, &s.settled, &s.version.Final,
		&s.version.At, &s.version.Seen, &s.version.Rank, &s.revision, &s.members, &s.overflow,
		&s.deleted, &s.ambiguous, &hash, &exact}, func() error {
		copy(s.hash[:], hash)
		copy(s.exact[:], exact)
		all = append(all, f)
		return nil
	})
	return all, err
}

// compare looks whether what was found may follow what was seen before, and remembers it.
func (w *watcher) compare(all []found) {
	circle := w.circles.Load()
	for i := range all {
		f := &all[i]
		f.now.circle = circle
		was, ok := w.known[f.key]
		if !ok {
			was = &sight{}
			w.known[f.key] = was
		} else if why := was.older(&f.now); why != "" {
			w.back = append(w.back, fmt.Sprintf("%v went back %s", f.key, why))
		}
		*was = f.now
	}
}

// round is the end of a circle: what was not seen in it is gone.
func (w *watcher) round() {
	circle := w.circles.Load()
	for key, s := range w.known {
		if s.circle < circle {
			w.back = append(w.back, fmt.Sprintf("%v is gone, and was at %v", key, s.version))
			delete(w.known, key)
		}
	}
	w.after = versioning.Key{}
	w.circles.Add(1)
}
