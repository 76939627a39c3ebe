package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
)

// The kinds of broken promises, as the report shows them.
const (
	lost           = "lost"
	doubled        = "duplicated"
	regressed      = "regressed"
	wentBack       = "objects seen going back"
	forgedAccepted = "forged accepted"
	wrongReceipt   = "wrong receipts"
	wrongObject    = "objects that differ from the log"
	wrongOutcome   = "outcomes that are missing or wrong"
	unsent         = "unsent changes"
	verified       = "violations that postern verify found"
	badAnswer      = "wrong responses"
)

// promises are these kinds, in the order of the report.
var promises = []string{lost, doubled, regressed, wentBack, forgedAccepted, wrongReceipt, wrongObject, wrongOutcome,
	unsent, verified, badAnswer}

// checker compares what the senders were promised with what is stored.
type checker struct {
	pool      *pgxpool.Pool
	endpoints map[string]config.Endpoint
	numbers   map[string]int32
	names     map[int32]string
	journal   string

	// authentic has the validly signed bodies by key. It stores digests, because a run may have a
	// million keys.
	authentic map[claim]struct{}
	log       map[digest]stored
	model     *model
	// counts and items have the broken promises by kind.
	counts map[string]int
	items  map[string][]string
}

// claim is a body that was sent with a key.
type claim struct{ key, body digest }

// keyOf returns the digest of a key in a source.
func keyOf(source, key string) digest { return digestOf([]byte(source + " " + key)) }

// stored is an event of the log.
type stored struct {
	id     int64
	digest digest
}

func newChecker(ctx context.Context, pool *pgxpool.Pool, endpoints map[string]config.Endpoint,
	journal string) (*checker, error) {
	known, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return nil, err
	}
	return &checker{pool: pool, endpoints: endpoints, numbers: known.Number, names: known.Name, journal: journal,
		authentic: map[claim]struct{}{}, log: map[digest]stored{}, model: newModel(),
		counts: map[string]int{}, items: map[string][]string{}}, nil
}

// mostItems is how many broken promises of each kind the report names.
const mostItems = 5

func (c *checker) broken(what, format string, args ...any) {
	if c.counts[what]++; len(c.items[what]) < mostItems {
		c.items[what] = append(c.items[what], fmt.Sprintf(format, args...))
	}
}

// check runs all checks. All servers must be up again, and all work must be finished.
func (c *checker) check(ctx context.Context) error {
	for _, part := range []func(context.Context) error{c.readSent, c.walkLog, c.readPromises, c.outcomes, c.objects,
		c.changes} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) readSent(context.Context) error {
	return readJournal(c.journal, func(e entry) error {
		if !e.Acknowledged && !e.Forged {
			c.authentic[claim{keyOf(e.Source, e.Key), e.Digest}] = struct{}{}
		}
		return nil
	})
}

// page is how many events are read together.
const page = 2000

// walkLog checks that each event of the log has an authentic sender and is stored once. It applies
// each to the model.
func (c *checker) walkLog(ctx context.Context) error {
	for after := int64(0); ; {
		ids, err := events.IDsAfter(ctx, c.pool, after, math.MaxInt64, page)
		if err != nil || len(ids) == 0 {
			return err
		}
		after = ids[len(ids)-1]
		recs, err := events.Read(ctx, c.pool, ids, events.UnlimitedBody)
		if err != nil {
			return err
		}
		for i := range recs {
			c.take(&recs[i])
			if err := c.model.apply(c.endpoints[c.names[recs[i].Source]], &recs[i]); err != nil {
				return err
			}
		}
	}
}

func (c *checker) take(r *events.Record) {
	source := c.names[r.Source]
	at, digest := keyOf(source, r.Key), digestOf(r.Body)
	if first, twice := c.log[at]; twice {
		c.broken(doubled, "%s %s is stored as %d and as %d", source, r.Key, first.id, r.ID)
	}
	c.log[at] = stored{r.ID, digest}
	if _, ok := c.authentic[claim{at, digest}]; !ok {
		c.broken(forgedAccepted, "%s %s is stored (%d) with a body that no sender has signed", source, r.Key, r.ID)
	}
}

// readPromises compares each receipt with the log.
func (c *checker) readPromises(ctx context.Context) error {
	kept, err := c.conflicts(ctx)
	if err != nil {
		return err
	}
	return readJournal(c.journal, func(e entry) error {
		if e.Acknowledged {
			c.promise(e, kept)
		}
		return nil
	})
}

func (c *checker) promise(e entry, kept map[stored]bool) {
	at := e.Source + " " + e.Key
	s, ok := c.log[keyOf(e.Source, e.Key)]
	switch {
	case e.Forged:
		c.broken(forgedAccepted, "%s was acknowledged", at)
	case !ok:
		c.broken(lost, "%s was acknowledged (spooled %t) and is not in the log", at, e.Spooled)
	case !e.Spooled && e.ID != strconv.FormatInt(s.id, 10):
		c.broken(doubled, "%s was acknowledged as %s and is stored as %d", at, e.ID, s.id)
	case s.digest != e.Digest && !kept[stored{s.id, e.Digest}]:
		c.broken(lost, "%s was acknowledged with a body that is neither in the log nor among the conflicts", at)
	case !e.Spooled && e.Conflict != (s.digest != e.Digest):
		c.broken(wrongReceipt, "%s was acknowledged with conflict %t, which is wrong", at, e.Conflict)
	}
}

// conflicts returns the bodies that were stored as conflicts.
func (c *checker) conflicts(ctx context.Context) (map[stored]bool, error) {
	kept := map[stored]bool{}
	rows, err := c.pool.Query(ctx, `SELECT event, body FROM event_conflicts`)
	if err != nil {
		return nil, err
	}
	var id int64
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &body}, func() error {
		kept[stored{id, digestOf(body)}] = true
		return nil
	})
	return kept, err
}

// outcomes checks that each event has an outcome. If the outcome does not depend on the order of
// events, it must be the model's.
func (c *checker) outcomes(ctx context.Context) error {
	rows, err := c.pool.Query(ctx, `SELECT event_id, status, reason FROM outcomes WHERE run = 0`)
	if err != nil {
		return err
	}
	have := make(map[int64]struct{}, len(c.log))
	var id int64
	var status, reason string
	_, err = pgx.ForEachRow(rows, []any{&id, &status, &reason}, func() error {
		have[id] = struct{}{}
		final := map[string]string{"dead": "dead", "ignored": "ignored", "failed": "failed"}[status]
		if final != c.model.final[id] || reason == "" {
			c.broken(wrongOutcome, "event %d is %s (%s), want %q", id, status, reason, c.model.final[id])
		}
		return nil
	})
	for _, s := range c.log {
		if _, ok := have[s.id]; !ok {
			c.broken(wrongOutcome, "event %d has no outcome", s.id)
		}
	}
	return err
}

const objectsSQL = `SELECT source, account, object_type, object_id, version_final, version_at, version_seen,
	version_rank, state_hash, deleted, ambiguous FROM objects`

// objects compares the mirror with the model.
func (c *checker) objects(ctx context.Context) error {
	rows, err := c.pool.Query(ctx, objectsSQL)
	if err != nil {
		return err
	}
	seen := 0
	var o object
	var hash []byte
	_, err = pgx.ForEachRow(rows, []any{&o.key.Source, &o.key.Account, &o.key.Type, &o.key.ID, &o.version.Final,
		&o.version.At, &o.version.Seen, &o.rank, &hash, &o.deleted, &o.ambiguous}, func() error {
		seen++
		o.version.Rank = o.rank
		copy(o.hash[:], hash)
		c.compare(o)
		return nil
	})
	if missing := len(c.model.rows) - seen; missing > 0 && err == nil {
		c.broken(wrongObject, "%d objects are missing", missing)
	}
	return err
}

func (c *checker) compare(o object) {
	want, ok := c.model.rows[o.key]
	switch {
	case !ok:
		c.broken(wrongObject, "%v is mirrored, and the log has no event of it", o.key)
	case o.version.Compare(want.Version) < 0:
		c.broken(regressed, "%v has version %v, and its newest event has %v", o.key, o.version, want.Version)
	case o.version != want.Version || o.hash != want.State.Hash || o.deleted != want.State.Deleted ||
		o.ambiguous != want.Ambiguous:
		c.broken(wrongObject, "%v has version %v (deleted %t, ambiguous %t), want %v (deleted %t, ambiguous %t), or "+
			"the states differ", o.key, o.version, o.deleted, o.ambiguous, want.Version, want.State.Deleted,
			want.Ambiguous)
	}
}

func (c *checker) changes(ctx context.Context) error {
	var n int
	if err := c.pool.QueryRow(ctx, `SELECT count(*) FROM outbox WHERE sent_at IS NULL`).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		c.broken(unsent, "%d batches are not sent", n)
	}
	return nil
}

// found returns an error that lists the broken promises, or nil.
func (c *checker) found() error {
	var errs []error
	for _, what := range promises {
		if n := c.counts[what]; n > 0 {
			errs = append(errs, fmt.Errorf("%s: %d", what, n))
			for _, item := range c.items[what] {
				errs = append(errs, fmt.Errorf("    %s", item))
			}
		}
	}
	return errors.Join(errs...)
}
