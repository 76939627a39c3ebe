package ingest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/telemetry"
)

const (
	// maxPendingRejections and maxPendingRejectionBytes bound the rejected deliveries of one source
	// that wait to be stored.
	maxPendingRejections     = 100
	maxPendingRejectionBytes = 1 << 20
	// rejectionInterval is the time between two writes. A flood of forged deliveries therefore
	// costs the database very little.
	rejectionInterval = 200 * time.Millisecond
)

// pendingRejection is a rejected delivery that waits to be stored.
type pendingRejection struct {
	source         string
	reason, detail string
	remote         string
	at             time.Time
	headers        []byte
	body           []byte
	bytes          int64
}

// rejectionStore stores rejected deliveries through a bounded queue per source and one writer. The
// response never waits for it; rejections that do not fit are counted and dropped. They wait under
// the source's name, because its number may not be known yet.
type rejectionStore struct {
	s       *Server
	mu      sync.Mutex
	pending map[string][]pendingRejection
	bytes   map[string]int64
}

func newRejectionStore(s *Server) *rejectionStore {
	return &rejectionStore{s: s, pending: map[string][]pendingRejection{}, bytes: map[string]int64{}}
}

func (r *rejectionStore) add(ep Endpoint, d *provider.Delivery, rejection *provider.Rejection, remote string) {
	body := d.Body
	if limit := r.s.Settings.RejectionsMaxBody; int64(len(body)) > limit {
		body = bytes.Clone(body[:limit]) // a subslice would keep the whole body in memory
	}
	pending := pendingRejection{source: ep.Config.Name, reason: string(rejection.Reason),
		detail: events.SanitizeText(rejection.Detail), remote: remote, at: d.ReceivedAt,
		headers: encodeHeaders(ep.headers, d), body: body, bytes: int64(len(d.Body))}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending[pending.source]) >= maxPendingRejections ||
		r.bytes[pending.source]+int64(len(body)) > max(maxPendingRejectionBytes, r.s.Settings.RejectionsMaxBody) {
		r.s.metrics.dropped.WithLabelValues(ep.Config.Name).Inc()
		return
	}
	r.pending[pending.source] = append(r.pending[pending.source], pending)
	r.bytes[pending.source] += int64(len(body))
}

// run stores pending rejections until ctx ends, then once more. It also logs the counts of
// suppressed log lines.
func (r *rejectionStore) run(ctx context.Context) {
	tick := time.NewTicker(rejectionInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.s.logSuppressed(time.Now())
			r.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			r.s.logSuppressed(time.Now().Add(telemetry.SuppressFor))
			r.flush(last)
			r.dropPending()
			return
		}
	}
}

const insertRejectionsSQL = `
INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::jsonb[], $7::bytea[],
	$8::bigint[])`

// pruneRejectionsSQL deletes the oldest rejections of a source beyond its bounds of count and
// bytes.
const pruneRejectionsSQL = `
DELETE FROM rejections WHERE id IN (
  SELECT id FROM (
    SELECT id, row_number() OVER (ORDER BY id DESC) AS place, sum(length(body)) OVER (ORDER BY id DESC) AS total
    FROM rejections WHERE source = $1) r
  WHERE place > $2 OR total > $3)`

// flush stores the pending rejections, unless the database is unchecked
// (Options.DatabaseUnchecked).
func (r *rejectionStore) flush(ctx context.Context) {
	if r.s.databaseUnchecked.Load() {
		return
	}
	r.mu.Lock()
	pending := r.pending
	r.pending, r.bytes = map[string][]pendingRejection{}, map[string]int64{}
	r.mu.Unlock()
	for name, batch := range pending {
		if err := r.insert(ctx, name, batch); err != nil {
			r.drop(name, batch, err)
		}
	}
}

// dropPending drops the rejections that still wait.
func (r *rejectionStore) dropPending() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, batch := range r.pending {
		r.drop(name, batch, errUnavailable)
	}
}

func (r *rejectionStore) drop(name string, batch []pendingRejection, cause error) {
	r.s.Logger.Warn("rejected deliveries were not stored", "deliveries", len(batch), "error", cause)
	r.s.metrics.dropped.WithLabelValues(name).Add(float64(len(batch)))
}

func (r *rejectionStore) insert(ctx context.Context, name string, batch []pendingRejection) error {
	source := (*r.s.endpoints.Load())[name].Number
	if source == 0 {
		return fmt.Errorf("source %s is no longer configured", name)
	}
	n := len(batch)
	sources, reasons, details, remotes := make([]int32, n), make([]string, n), make([]string, n), make([]string, n)
	times, headers, bodies, sizes := make([]time.Time, n), make([][]byte, n), make([][]byte, n), make([]int64, n)
	for i, b := range batch {
		sources[i], reasons[i], details[i], remotes[i] = source, b.reason, b.detail, b.remote
		times[i], headers[i], bodies[i], sizes[i] = b.at, b.headers, b.body, b.bytes
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second,
		fmt.Errorf("store %d rejections: no response within 5 s", n))
	defer cancel()
	if _, err := r.s.Pool.Exec(ctx, insertRejectionsSQL, sources, reasons, details, remotes, times, headers, bodies,
		sizes); err != nil {
		return err
	}
	_, err := r.s.Pool.Exec(ctx, pruneRejectionsSQL, source, r.s.Settings.RejectionsMaxCount,
		r.s.Settings.RejectionsMaxBytes)
	return err
}
