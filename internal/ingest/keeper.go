package ingest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
)

const (
	// watchEvery is how often it is looked whether appends have stalled.
	watchEvery = 50 * time.Millisecond
	// drainEvery is how often the store is tried while it is away, with what the spool holds.
	drainEvery = 250 * time.Millisecond
)

// Kept is a verified delivery as the spool has it: all that an append and a publish need, under the source's name, since its number may not be known yet. It is encoded
// by gob, which keeps strings that are no UTF-8 as they are.
type Kept struct {
	Source, Provider, Trace string
	Delivery                events.Delivery
}

// ReadKept reads a record of a spool.
func ReadKept(record []byte) (k Kept, err error) {
	if err = gob.NewDecoder(bytes.NewReader(record)).Decode(&k); err != nil {
		return k, fmt.Errorf("read a kept delivery: %w", err)
	}
	return k, nil
}

// Record is a kept delivery in the bytes that the spool has of it.
func (k Kept) Record() ([]byte, error) {
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(k); err != nil {
		return nil, fmt.Errorf("keep a delivery: %w", err)
	}
	return buf.Bytes(), nil
}

// keeps: what the source is sent may be kept in the spool.
func (s *Server) keeps(ep Endpoint) bool { return s.Spool != nil && !ep.FinalReceipts }

// spooled keeps a delivery in the spool, and thereby acknowledges it. The body is held a while longer, so it counts again.
func (s *Server) spooled(v *visit, d events.Delivery) error {
	left := s.Settings.Deadline - s.Now().Sub(v.began)
	if !s.keeps(v.ep) || left <= 0 {
		return errUnavailable // what has waited in vain is not kept, since the store need not be away: overload fills no spool
	}
	defer s.startSpan(v, "spool").End()
	if v.memory.of == nil {
		v.memory = part{of: s.memory, source: v.ep.Config.Name}
		if !v.memory.grow(int64(len(d.Body))) {
			return errFull
		}
	}
	if d.Bodies != nil {
		d.Body = nil // it is all in them
	}
	d.Exact = false // it is acknowledged: what of it comes to conflict is kept, like any sender's
	record, err := Kept{Source: v.ep.Config.Name, Provider: v.ep.Provider.Name(), Trace: v.trace(), Delivery: d}.Record()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), left, errUnavailable)
	defer cancel()
	if err := s.Spool.Append(ctx, record); err != nil {
		return errors.Join(errUnavailable, err)
	}
	v.result = "spooled"
	return nil
}

// watch notices when appends stall, so that those who wait for them are kept in the spool.
func (a *appender) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if a.stalled() {
				a.gone("appends have stalled")
			}
		case <-ctx.Done():
			return
		}
	}
}

// gone says once that the store is away.
func (a *appender) gone(why any) {
	if a.outage.begin() && a.s.Spool != nil {
		a.s.Logger.Warn("the store is away: deliveries are kept in the spool", "error", why)
	}
}

// back says once that the store is there again.
func (a *appender) back() {
	if away := a.outage.end(); away > 0 && a.s.Spool != nil {
		a.s.Logger.Info("the store is there again", "away", away.Round(time.Millisecond).String(), "spooled", a.s.Spool.Stats().Records)
	}
}

// drain appends what the spool holds, until ctx ends. While the store is away this is what tries it.
func (s *Server) drain(ctx context.Context) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	numbers, said := map[string]int32{}, ""
	var told time.Time
	for {
		if !s.unproven.Load() { // else the database may be another one, or of another version
			var err error
			if time.Since(told) >= tellEvery { // before anything is drained: a redaction must know that there is something to wait for
				if err = s.tell(ctx, false); err == nil {
					told = time.Now()
				} else if s.Spool.Stats().Records > 0 && !postgres.IsRefused(err) {
					s.appender.gone(err)
				}
			}
			if err == nil {
				err = s.drainOnce(ctx, numbers)
				if postgres.Code(err) != "" && !errors.Is(err, events.ErrUnavailable) && !s.appender.stalled() {
					s.appender.back() // it answers: what is wrong with what is kept need not be wrong with what comes now
				}
			}
			said = s.tellWaits(ctx, said, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// drainOnce appends what the spool holds until nothing is left, and has it told of meanwhile: that may take minutes, and a batch may hang.
func (s *Server) drainOnce(ctx context.Context, numbers map[string]int32) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	ended := make(chan struct{})
	defer close(ended)
	beside.Go(func() { s.tellUntil(ctx, ended) })
	return s.Spool.Drain(ctx, s.Settings.BatchMax, s.Settings.BatchBytes, func(batch []spool.Record) error { return s.unspool(ctx, numbers, batch) })
}

// tellWaits says why the spool is not emptied, once for each reason in a row; what needs a person as an error. It returns what is said now.
func (s *Server) tellWaits(ctx context.Context, said string, err error) string {
	if err == nil || ctx.Err() != nil {
		return ""
	}
	why := cmp.Or(postgres.Code(err), "away")
	switch {
	case why == said:
	case errors.Is(err, events.ErrUnavailable) && !postgres.IsRefused(err):
		s.Logger.Debug("the spool waits", "error", err)
	default:
		s.Logger.Error("the spool cannot be emptied: mend what is wrong, and it goes on by itself", "error", err)
	}
	return why
}

// unspool appends a batch of what was kept. What the log refuses for its own sake is set apart, so that it keeps nothing behind it back. Errors: events.ErrUnavailable.
func (s *Server) unspool(ctx context.Context, numbers map[string]int32, batch []spool.Record) error {
	waits, good := make([]*waiting, 0, len(batch)), make([]spool.Record, 0, len(batch))
	for _, rec := range batch {
		k, err := ReadKept(rec.Bytes)
		if err != nil {
			if err := s.setApart(rec, err); err != nil {
				return err
			}
			continue
		}
		number, err := s.number(ctx, numbers, k)
		if errors.Is(err, events.ErrOtherProvider) {
			if err := s.setApart(rec, err); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		k.Delivery.Source = number
		waits = append(waits, &waiting{ep: Endpoint{Config: &provider.Source{Name: k.Source}}, delivery: k.Delivery, trace: k.Trace})
		good = append(good, rec)
	}
	return s.appendKept(ctx, good, waits)
}

// number is that of a source, which may be new to the database. Errors: events.ErrUnavailable, events.ErrOtherProvider.
func (s *Server) number(ctx context.Context, numbers map[string]int32, k Kept) (int32, error) {
	if n, ok := numbers[k.Source]; ok {
		return n, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.within())
	defer cancel()
	known, err := events.RegisterSources(ctx, s.Pool, map[string]string{k.Source: k.Provider})
	if postgres.IsUnavailable(err) || postgres.IsRefused(err) {
		return 0, fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	if err != nil {
		return 0, err
	}
	numbers[k.Source] = known.Number[k.Source]
	return numbers[k.Source], nil
}

// appendKept appends and publishes deliveries of the spool.
func (s *Server) appendKept(ctx context.Context, batch []spool.Record, waits []*waiting) error {
	if len(waits) == 0 {
		return nil
	}
	deliveries := make([]events.Delivery, len(waits))
	for i, w := range waits {
		deliveries[i] = w.delivery
	}
	acquire, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.within())
	receipts, err := events.Append(acquire, s.Pool, deliveries)
	cancel()
	switch {
	case err == nil:
	case errors.Is(err, events.ErrUnavailable):
		s.appender.gone(err)
		return err
	case !ofTheData(err):
		return err
	case len(waits) == 1:
		return s.setApart(batch[0], err)
	default:
		half := len(waits) / 2
		return errors.Join(s.appendKept(ctx, batch[:half], waits[:half]), s.appendKept(ctx, batch[half:], waits[half:]))
	}
	if !s.appender.stalled() { // else the store is there for this connection alone
		s.appender.back()
	}
	var fresh []stream.Event
	for i, w := range waits {
		fresh = appendEvents(fresh, w, receipts[i])
		s.count(w.ep.Config.Name, deliveries[i].Events, receipts[i])
	}
	if len(fresh) > 0 {
		s.Publish(fresh...)
	}
	s.Logger.Debug("appended from the spool", "deliveries", len(waits), "new", len(fresh))
	return nil
}

// ofTheData: the database refuses what a delivery holds, and will do so each time (SQLSTATE classes 22 and 23). Anything else, as a missing right or column, is not the delivery's fault.
func ofTheData(err error) bool {
	code := postgres.Code(err)
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23")
}

// setApart takes out of the way what can never be appended. A person finds it, and why, in the log.
func (s *Server) setApart(rec spool.Record, why error) error {
	name, err := s.Spool.SetApart(rec)
	if err != nil {
		return err
	}
	s.metrics.setApart.Inc()
	s.Logger.Error("an acknowledged delivery cannot be appended: it is kept beside the spool", "file", name, "error", why)
	return nil
}
