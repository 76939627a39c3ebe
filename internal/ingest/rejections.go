package ingest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

const (
	// keepQueue and keepQueueBytes bound the refused deliveries of one source that wait to be kept.
	keepQueue      = 100
	keepQueueBytes = 1 << 20
	// keepEvery spaces the writes, so that a flood of forgeries costs the database next to nothing.
	keepEvery = 200 * time.Millisecond
)

// rejected is a refused delivery on its way to the table.
type rejected struct {
	name           string
	reason, detail string
	remote         string
	at             time.Time
	headers        []byte
	body           []byte
	bytes          int64
}

// recorder keeps refused deliveries through a bounded queue per source and one batch writer. The 401 never waits for it; what
// does not fit is counted and dropped. They wait under the source's name, since its number may not be known yet.
type recorder struct {
	s       *Server
	mu      sync.Mutex
	waiting map[string][]rejected
	bytes   map[string]int64
}

func newRecorder(s *Server) *recorder {
	return &recorder{s: s, waiting: map[string][]rejected{}, bytes: map[string]int64{}}
}

func (r *recorder) offer(ep Endpoint, d *provider.Delivery, why *provider.Rejection, remote string) {
	body := d.Body
	if most := r.s.Settings.RejectionsMaxBody; int64(len(body)) > most {
		body = bytes.Clone(body[:most]) // a piece would hold the whole in memory
	}
	one := rejected{name: ep.Config.Name, reason: string(why.Reason), detail: events.Text(why.Detail), remote: remote, at: d.ReceivedAt,
		headers: keptHeaders(ep.headers, d), body: body, bytes: int64(len(d.Body))}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting[one.name]) >= keepQueue || r.bytes[one.name]+int64(len(body)) > max(keepQueueBytes, r.s.Settings.RejectionsMaxBody) {
		r.s.metrics.dropped.WithLabelValues(ep.Config.Name).Inc()
		return
	}
	r.waiting[one.name] = append(r.waiting[one.name], one)
	r.bytes[one.name] += int64(len(body))
}

// run keeps what is offered until ctx ends, then once more, and tells of what else was refused.
func (r *recorder) run(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.s.tellLeft(time.Now())
			r.write(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			r.s.tellLeft(time.Now().Add(complainEvery))
			r.write(last)
			r.end()
			return
		}
	}
}

const keepSQL = `
INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::jsonb[], $7::bytea[], $8::bigint[])`

// pruneSQL drops the oldest rejections of a source beyond its bounds of count and bytes.
const pruneSQL = `
DELETE FROM rejections WHERE id IN (
  SELECT id FROM (
    SELECT id, row_number() OVER (ORDER BY id DESC) AS place, sum(length(body)) OVER (ORDER BY id DESC) AS total
    FROM rejections WHERE source = $1) r
  WHERE place > $2 OR total > $3)`

// write keeps what waits, but not in a database that may be another one.
func (r *recorder) write(ctx context.Context) {
	if r.s.unproven.Load() {
		return
	}
	r.mu.Lock()
	waiting := r.waiting
	r.waiting, r.bytes = map[string][]rejected{}, map[string]int64{}
	r.mu.Unlock()
	for name, batch := range waiting {
		if err := r.keep(ctx, name, batch); err != nil {
			r.drop(name, batch, err)
		}
	}
}

// end drops what still waits.
func (r *recorder) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, batch := range r.waiting {
		r.drop(name, batch, errUnavailable)
	}
}

func (r *recorder) drop(name string, batch []rejected, why error) {
	r.s.Logger.Warn("refused deliveries not kept", "deliveries", len(batch), "error", why)
	r.s.metrics.dropped.WithLabelValues(name).Add(float64(len(batch)))
}

func (r *recorder) keep(ctx context.Context, name string, batch []rejected) error {
	source := (*r.s.endpoints.Load())[name].Number
	if source == 0 {
		return fmt.Errorf("source %s is not among the sources any more", name)
	}
	n := len(batch)
	sources, reasons, details, remotes := make([]int32, n), make([]string, n), make([]string, n), make([]string, n)
	times, headers, bodies, sizes := make([]time.Time, n), make([][]byte, n), make([][]byte, n), make([]int64, n)
	for i, b := range batch {
		sources[i], reasons[i], details[i], remotes[i] = source, b.reason, b.detail, b.remote
		times[i], headers[i], bodies[i], sizes[i] = b.at, b.headers, b.body, b.bytes
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, fmt.Errorf("keep %d rejections: no answer within 5 s", n))
	defer cancel()
	if _, err := r.s.Pool.Exec(ctx, keepSQL, sources, reasons, details, remotes, times, headers, bodies, sizes); err != nil {
		return err
	}
	_, err := r.s.Pool.Exec(ctx, pruneSQL, source, r.s.Settings.RejectionsMaxCount, r.s.Settings.RejectionsMaxBytes)
	return err
}

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return append(listStatements(), keepSQL, pruneSQL, releasedSQL, clockSQL, tellSQL, untellSQL)
}
