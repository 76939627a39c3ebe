package ingest

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/provider"
)

// Functions that write JSON without reflection.
var (
	EncodeHeaders      = encodeHeaders
	AppendVerification = appendVerification
	AppendReceipt      = appendReceipt
)

// Diagnose returns the diagnosis of a group with deliveries that were rejected after the last
// accepted one.
func (g RejectionGroup) Diagnose(since int64, from time.Time) string {
	g.rejectedSince, g.rejectedFrom = since, from
	return g.diagnose()
}

// RejectionGroupsSQL groups rejections.
const RejectionGroupsSQL = rejectionGroupsSQL

// Routes returns the routes of a server.
func (s *Server) Routes() []*echo.Route { return s.router().Routes() }

// BatchQueue is the queue of a server, with the batches that its writers get.
type BatchQueue struct{ a *appender }

// NewBatchQueue returns a queue for the given number of writers, with at most that many deliveries
// per batch.
func NewBatchQueue(writers, most int) *BatchQueue {
	s := &Server{Options: Options{Settings: Settings{Writers: writers, BatchMax: most, BatchBytes: 1 << 20, Queue: 4096,
		Deadline: 20 * time.Second, StallAfter: 15 * time.Second}}}
	return &BatchQueue{newAppender(s)}
}

// Push adds n deliveries.
func (b *BatchQueue) Push(n int) {
	for range n {
		b.a.queue.push(&queuedDelivery{ep: Endpoint{Config: &provider.Source{Name: "s"}}}, 0, 1)
	}
}

// PushUntilFull adds deliveries until one is rejected, and returns how many were accepted.
func (b *BatchQueue) PushUntilFull(most int) (n int) {
	for n < most && b.a.enqueue(&queuedDelivery{ep: Endpoint{Number: 1, Config: &provider.Source{Name: "s"}}}) == nil {
		n++
	}
	return n
}

// ObserveCommit adds the duration of a commit to the estimate.
func (b *BatchQueue) ObserveCommit(d time.Duration) { b.a.queue.observeCommit(d) }

// PushAbandoned adds deliveries and abandons them in random order.
func (b *BatchQueue) PushAbandoned(n int) {
	all := make([]*queuedDelivery, n)
	for i := range all {
		all[i] = &queuedDelivery{result: make(chan result, 1), ep: Endpoint{Config: &provider.Source{Name: "s"}}}
		b.a.queue.push(all[i], 0, 1)
	}
	for _, i := range rand.Perm(n) {
		b.a.queue.abandon(all[i])
	}
}

// Waiting returns the number of queued deliveries.
func (b *BatchQueue) Waiting() int {
	b.a.queue.mu.Lock()
	defer b.a.queue.mu.Unlock()
	return b.a.queue.count
}

// Next returns the size of the batch that a writer gets.
func (b *BatchQueue) Next(ctx context.Context, writer int) int {
	return len(b.a.nextBatch(ctx, writer))
}

// EndCommit ends a writer's commit of n deliveries.
func (b *BatchQueue) EndCommit(writer, n int) { b.a.commitDone(writer, n) }

// Limit sets the maximum number of deliveries in a batch.
func (b *BatchQueue) Limit(most int) { b.a.s.Settings.BatchMax = most }

// LogRejections runs the logging of rejections until ctx ends. reject logs or suppresses one
// rejection; ended is closed after the last line.
func LogRejections(ctx context.Context, log *slog.Logger) (reject func(source, result string), ended chan struct{}) {
	s := &Server{Options: Options{Logger: log}}
	s.databaseUnchecked.Store(true) // nothing is written to a database
	s.rejections, ended = newRejectionStore(s), make(chan struct{})
	go func() {
		defer close(ended)
		s.rejections.run(ctx)
	}()
	return func(source, result string) {
		level, more := s.suppressibleLevel(logKey{source: source, result: result})
		log.Log(ctx, level, "rejected", "source", source, "result", result, "more_since", more)
	}, ended
}
