package ingest

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/provider"
)

// What is written without reflection.
var (
	KeptHeaders        = keptHeaders
	AppendVerification = appendVerification
	AppendReceipt      = appendReceipt
)

// Routes are those of a server.
func (s *Server) Routes() []*echo.Route { return s.router().Routes() }

// Batches hands out batches as the writers of a server get them.
type Batches struct{ a *appender }

// NewBatches returns the batches of so many writers.
func NewBatches(writers, most int) *Batches {
	s := &Server{Options: Options{Settings: Settings{Writers: writers, BatchMax: most, BatchBytes: 1 << 20, Queue: 4096, Deadline: 20 * time.Second, StallAfter: 15 * time.Second}}}
	return &Batches{newAppender(s)}
}

// Push adds deliveries.
func (b *Batches) Push(n int) {
	for range n {
		b.a.queue.push(&waiting{ep: Endpoint{Config: &provider.Source{Name: "s"}}}, 0, 1)
	}
}

// Fit is how many deliveries are taken until one is refused, at most so many.
func (b *Batches) Fit(most int) (n int) {
	for n < most && b.a.enqueue(&waiting{ep: Endpoint{Number: 1, Config: &provider.Source{Name: "s"}}}) == nil {
		n++
	}
	return n
}

// Took says that a commit took so long.
func (b *Batches) Took(d time.Duration) { b.a.queue.took(d) }

// PushLeft adds deliveries that nobody waits for any more, which leave in no order.
func (b *Batches) PushLeft(n int) {
	all := make([]*waiting, n)
	for i := range all {
		all[i] = &waiting{answer: make(chan result, 1), ep: Endpoint{Config: &provider.Source{Name: "s"}}}
		b.a.queue.push(all[i], 0, 1)
	}
	for _, i := range rand.Perm(n) {
		b.a.queue.leave(all[i])
	}
}

// Waiting is how many deliveries wait.
func (b *Batches) Waiting() int {
	b.a.queue.mu.Lock()
	defer b.a.queue.mu.Unlock()
	return b.a.queue.count
}

// Next is how many deliveries a writer gets.
func (b *Batches) Next(ctx context.Context, writer int) int { return len(b.a.next(ctx, writer)) }

// End says that a writer's commit of so many deliveries has ended.
func (b *Batches) End(writer, n int) { b.a.done(writer, n) }

// Limit bounds a batch.
func (b *Batches) Limit(most int) { b.a.s.Settings.BatchMax = most }

// Complaints are refusals that are told once in a while.
type Complaints struct{ c complaints }

// Due tells whether a refusal is to be told, and how many were not since the last that was.
func (c *Complaints) Due(source, result string, reason provider.Reason, now time.Time) (since int, due bool) {
	return c.c.due(complaint{source, result, reason}, now)
}

// Refusing is what tells of refusals until ctx ends: refuse has one told, or kept back, and ended is closed after the last line.
func Refusing(ctx context.Context, log *slog.Logger) (refuse func(source, result string), ended chan struct{}) {
	s := &Server{Options: Options{Logger: log}}
	s.unproven.Store(true) // nothing is written
	s.rejections, ended = newRecorder(s), make(chan struct{})
	go func() {
		defer close(ended)
		s.rejections.run(ctx)
	}()
	return func(source, result string) {
		level, more := s.once(complaint{source: source, result: result})
		log.Log(ctx, level, "refused", "source", source, "result", result, "more_since", more)
	}, ended
}
