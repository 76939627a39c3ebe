package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// growthWarm is how many times longer the first round is, which is not measured. After it most
// pages of the large index have been written in full since the checkpoint at its beginning.
const growthWarm = 3

// growth measures ingest into a database with many keys and events, and into an empty one. Between
// the runs only PostgreSQL's own checkpoints happen. After a checkpoint PostgreSQL logs the full
// page at its first change. A short run on a large index would pay that for every event, and a
// running system hardly ever.
func (s *Suite) growth(ctx context.Context, row string, rounds, keys, events int, shape Shape) (_ []Sample, err error) {
	grown, err := s.grow(ctx, keys, events)
	defer s.drop(ctx, grown, &err)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	// created before and dropped after all rounds, because dropping causes a checkpoint
	empty := make([]string, rounds+1)
	for i := range empty {
		if empty[i], err = s.m.NewDatabaseQuietly(ctx); err != nil {
			return nil, err
		}
		defer s.drop(ctx, empty[i], &err)
	}
	if err := s.m.Reset(ctx); err != nil {
		return nil, err
	}
	targets, runs := []string{grownTarget, emptyTarget}, 0
	samples, err := s.inTurn(row, rounds+1, targets, func(target string) (Sample, error) {
		one, round := shape, runs/len(targets)
		runs++
		one.Database, one.InPlace = grown, true
		if target == emptyTarget {
			one.Database = empty[round]
		}
		if round == 0 {
			one.For *= growthWarm
		}
		return s.ingestCounted(ctx, one)
	})
	samples = samples[min(len(targets), len(samples)):]
	for i := range samples {
		samples[i].Round--
	}
	return samples, err
}

// ingestCounted is Ingest on a database without copying it. It adds the pages that were not in
// PostgreSQL's memory (new ones included) per stored event, warm-up included.
func (s *Suite) ingestCounted(ctx context.Context, shape Shape) (sample Sample, err error) {
	before, err := s.pages(ctx, shape.Database)
	if err != nil {
		return sample, err
	}
	if sample, err = s.ingest(ctx, Postern, shape); err != nil {
		return sample, err
	}
	after, err := s.pages(ctx, shape.Database)
	if err != nil {
		return sample, err
	}
	stored := max(sample.More["stored"], 1)
	for name := range after {
		n := after[name] - before[name]
		if name != "checkpoints" {
			n /= stored
		}
		sample.more(name, n)
	}
	return sample, nil
}

const sessionsSQL = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
	AND pid <> pg_backend_pid() AND backend_type = 'client backend'`

const pagesSQL = `
SELECT
  coalesce(sum(heap_blks_read) FILTER (WHERE relname = 'event_keys'), 0)::float8,
  coalesce(sum(idx_blks_read) FILTER (WHERE relname = 'event_keys'), 0)::float8,
  coalesce(sum(coalesce(heap_blks_read, 0) + coalesce(idx_blks_read, 0) + coalesce(toast_blks_read,
  	0) + coalesce(tidx_blks_read, 0)) FILTER (WHERE relname LIKE 'events\_2%'), 0)::float8,
  (SELECT blks_read FROM pg_stat_database WHERE datname = current_database())::float8,
  (SELECT wal_fpi FROM pg_stat_wal)::float8,
  (SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter)::float8
FROM pg_statio_user_tables WHERE schemaname = 'postern'`

// pages reads the counters after all sessions have ended, because a session reports its own at its
// end.
func (s *Suite) pages(ctx context.Context, database string) (map[string]float64, error) {
	conn, err := s.onlySession(ctx, database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var keys, index, events, all, full, checkpoints float64
	if err := conn.QueryRow(ctx, pagesSQL).Scan(&keys, &index, &events, &all, &full, &checkpoints); err != nil {
		return nil, err
	}
	return map[string]float64{"missed_keys": keys, "missed_keys_index": index, "missed_events": events,
		"missed_all": all, "full_pages": full, "checkpoints": checkpoints}, nil
}

// onlySession connects to a database and waits until no other session is connected to it.
func (s *Suite) onlySession(ctx context.Context, database string) (*pgx.Conn, error) {
	const within = 10 * time.Second
	conn, err := s.m.Connect(ctx, database)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		var others int
		err := conn.QueryRow(ctx, sessionsSQL).Scan(&others)
		if err == nil && others == 0 {
			return conn, nil
		}
		if err == nil && time.Since(began) > within {
			err = fmt.Errorf("%d sessions are still connected", others)
		}
		if err != nil {
			return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
		}
	}
}
