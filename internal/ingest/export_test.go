package ingest

import (
	"context"

	"github.com/postern-gateway/postern/internal/provider"
)

// What is written without reflection.
var (
	KeptHeaders        = keptHeaders
	AppendVerification = appendVerification
	AppendReceipt      = appendReceipt
)

// Batches hands out batches as the writers of a server get them.
type Batches struct{ a *appender }

// NewBatches returns the batches of so many writers.
func NewBatches(writers, most int) *Batches {
	s := &Server{Options: Options{Settings: Settings{Writers: writers, BatchMax: most, BatchBytes: 1 << 20, Queue: 4096}}}
	return &Batches{newAppender(s)}
}

// Push adds deliveries.
func (b *Batches) Push(n int) {
	for range n {
		b.a.queue.push(&waiting{ep: Endpoint{Config: &provider.Source{Name: "s"}}})
	}
}

// Next is how many deliveries a writer gets.
func (b *Batches) Next(ctx context.Context, writer int) int { return len(b.a.next(ctx, writer)) }

// End says that a writer's commit of so many deliveries has ended.
func (b *Batches) End(writer, n int) { b.a.done(writer, n) }

// Limit bounds a batch.
func (b *Batches) Limit(most int) { b.a.s.Settings.BatchMax = most }
