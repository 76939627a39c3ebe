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
	// stallCheckInterval is how often the appender checks for stalled appends.
	stallCheckInterval = 50 * time.Millisecond
	// drainInterval is how often the gateway tries to drain the spool while PostgreSQL is
	// unavailable.
	drainInterval = 250 * time.Millisecond
)

// SpooledDelivery is a verified delivery as the spool stores it, with all that an append and a
// publish need. It has the source's name, because the number may not be known yet. Its encoding is
// gob, which keeps strings that are not UTF-8.
type SpooledDelivery struct {
	Source, Provider, Trace string
	Delivery                events.Delivery
}

// DecodeSpooled decodes a record of a spool.
func DecodeSpooled(record []byte) (k SpooledDelivery, err error) {
	if err = gob.NewDecoder(bytes.NewReader(record)).Decode(&k); err != nil {
		return k, fmt.Errorf("decode a spooled delivery: %w", err)
	}
	return k, nil
}

// Encode returns the record that the spool stores.
func (k SpooledDelivery) Encode() ([]byte, error) {
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(k); err != nil {
		return nil, fmt.Errorf("encode a delivery for the spool: %w", err)
	}
	return buf.Bytes(), nil
}

// maySpool returns true if deliveries of the source may be written to the spool.
func (s *Server) maySpool(ep Endpoint) bool { return s.Spool != nil && !ep.RequireCommit }

// spoolDelivery writes a delivery to the spool; after that it may be acknowledged. The body stays
// in memory meanwhile. If the queue has taken over the reservation of that memory, spoolDelivery
// makes a new one.
func (s *Server) spoolDelivery(r *webhookRequest, d events.Delivery) error {
	remaining := s.Settings.Deadline - s.Now().Sub(r.startedAt)
	if !s.maySpool(r.ep) || remaining <= 0 {
		// A delivery whose deadline has passed is not spooled: PostgreSQL may be available and only
		// overloaded, and overload must not fill the spool.
		return errUnavailable
	}
	defer s.startSpan(r, "spool").End()
	if r.memory.quotas == nil {
		r.memory = reservation{quotas: s.memory, source: r.ep.Config.Name}
		if !r.memory.grow(int64(len(d.Body))) {
			return errOverloaded
		}
	}
	if d.Bodies != nil {
		d.Body = nil // Bodies contain all of it
	}
	// A spooled delivery is acknowledged before its append, so a conflict must be stored and not
	// rejected.
	d.RejectConflicts = false
	record, err := SpooledDelivery{Source: r.ep.Config.Name, Provider: r.ep.Provider.Name(), Trace: r.traceparent(),
		Delivery: d}.Encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), remaining, errUnavailable)
	defer cancel()
	if err := s.Spool.Append(ctx, record); err != nil {
		return errors.Join(errUnavailable, err)
	}
	r.result = "spooled"
	return nil
}

// watchStalls starts an outage when all appends stall, so that waiting deliveries go to the spool.
func (a *appender) watchStalls(ctx context.Context) {
	tick := time.NewTicker(stallCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if a.allWritersStalled() {
				a.beginOutage("appends have stalled")
			}
		case <-ctx.Done():
			return
		}
	}
}

// beginOutage starts an outage, unless there is one already, and logs it.
func (a *appender) beginOutage(cause any) {
	if a.outage.begin() && a.s.Spool != nil {
		a.s.Logger.Warn("PostgreSQL is unavailable: deliveries go to the spool", "error", cause)
	}
}

// endOutage ends an outage, if there is one, and logs it.
func (a *appender) endOutage() {
	if duration := a.outage.end(); duration > 0 && a.s.Spool != nil {
		a.s.Logger.Info("PostgreSQL is available again", "unavailable_for",
			duration.Round(time.Millisecond).String(), "spooled", a.s.Spool.Stats().Records)
	}
}

// drainSpool appends the records of the spool until ctx ends. During an outage its attempts show
// when PostgreSQL is available again.
func (s *Server) drainSpool(ctx context.Context) {
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	numbers, lastLogged := map[string]int32{}, ""
	var lastReport time.Time
	for {
		if !s.databaseUnchecked.Load() { // otherwise this may be another database, or one with another schema version
			var err error
			// Before records are drained the database must know of this spool, because a redaction
			// waits until it is empty.
			if time.Since(lastReport) >= statusInterval {
				if err = s.reportSpoolStatus(ctx, false); err == nil {
					lastReport = time.Now()
				} else if s.Spool.Stats().Records > 0 && !postgres.NeedsOperator(err) {
					s.appender.beginOutage(err)
				}
			}
			if err == nil {
				err = s.drainOnce(ctx, numbers)
				if postgres.Code(err) != "" && !errors.Is(err, events.ErrUnavailable) &&
					!s.appender.allWritersStalled() {
					// PostgreSQL responds. An error that is caused by the spooled data says nothing
					// about new deliveries.
					s.appender.endOutage()
				}
			}
			lastLogged = s.logDrainFailure(ctx, lastLogged, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// drainOnce appends the records of the spool until it is empty. It reports the spool's status
// meanwhile, because draining may take minutes and a batch may stall.
func (s *Server) drainOnce(ctx context.Context, numbers map[string]int32) error {
	var background sync.WaitGroup
	defer background.Wait()
	ended := make(chan struct{})
	defer close(ended)
	background.Go(func() { s.reportSpoolStatusUntil(ctx, ended) })
	return s.Spool.Drain(ctx, s.Settings.BatchMax, s.Settings.BatchBytes,
		func(batch []spool.Record) error { return s.appendSpooledBatch(ctx, numbers, batch) })
}

// logDrainFailure logs why the spool is not drained, once for each reason in a row. A failure that
// needs an operator is logged as an error. It returns the reason that is now logged.
func (s *Server) logDrainFailure(ctx context.Context, lastLogged string, err error) string {
	if err == nil || ctx.Err() != nil {
		return ""
	}
	reason := cmp.Or(postgres.Code(err), "unavailable")
	switch {
	case reason == lastLogged:
	case errors.Is(err, events.ErrUnavailable) && !postgres.NeedsOperator(err):
		s.Logger.Debug("the spool waits for PostgreSQL", "error", err)
	default:
		s.Logger.Error("the spool cannot be drained: fix the cause, and draining continues automatically", "error", err)
	}
	return reason
}

// appendSpooledBatch appends a batch of records. A record whose data the log rejects is
// quarantined, so that it does not block those after it. Errors: events.ErrUnavailable.
func (s *Server) appendSpooledBatch(ctx context.Context, numbers map[string]int32, batch []spool.Record) error {
	deliveries, records := make([]*queuedDelivery, 0, len(batch)), make([]spool.Record, 0, len(batch))
	for _, rec := range batch {
		k, err := DecodeSpooled(rec.Bytes)
		if err != nil {
			if err := s.quarantine(rec, err); err != nil {
				return err
			}
			continue
		}
		number, err := s.sourceNumber(ctx, numbers, k)
		if errors.Is(err, events.ErrOtherProvider) {
			if err := s.quarantine(rec, err); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		k.Delivery.Source = number
		deliveries = append(deliveries, &queuedDelivery{ep: Endpoint{Config: &provider.Source{Name: k.Source}},
			delivery: k.Delivery, trace: k.Trace})
		records = append(records, rec)
	}
	return s.appendSpooled(ctx, records, deliveries)
}

// sourceNumber returns the number of a source and registers a new one. Errors:
// events.ErrUnavailable, events.ErrOtherProvider.
func (s *Server) sourceNumber(ctx context.Context, numbers map[string]int32, k SpooledDelivery) (int32, error) {
	if n, ok := numbers[k.Source]; ok {
		return n, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.acquireTimeout())
	defer cancel()
	registered, err := events.RegisterSources(ctx, s.Pool, map[string]string{k.Source: k.Provider})
	if postgres.IsUnavailable(err) || postgres.NeedsOperator(err) {
		return 0, fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	if err != nil {
		return 0, err
	}
	numbers[k.Source] = registered.Number[k.Source]
	return numbers[k.Source], nil
}

// appendSpooled appends and publishes deliveries of the spool.
func (s *Server) appendSpooled(ctx context.Context, records []spool.Record, queued []*queuedDelivery) error {
	if len(queued) == 0 {
		return nil
	}
	deliveries := make([]events.Delivery, len(queued))
	for i, d := range queued {
		deliveries[i] = d.delivery
	}
	acquire, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.acquireTimeout())
	receipts, err := events.Append(acquire, s.Pool, deliveries)
	cancel()
	switch {
	case err == nil:
	case errors.Is(err, events.ErrUnavailable):
		s.appender.beginOutage(err)
		return err
	case !isDataError(err):
		return err
	case len(queued) == 1:
		return s.quarantine(records[0], err)
	default:
		half := len(queued) / 2
		return errors.Join(s.appendSpooled(ctx, records[:half], queued[:half]),
			s.appendSpooled(ctx, records[half:], queued[half:]))
	}
	if !s.appender.allWritersStalled() { // otherwise only this connection works
		s.appender.endOutage()
	}
	var newEvents []stream.Event
	for i, d := range queued {
		newEvents = appendStreamEvents(newEvents, d, receipts[i])
		s.countEvents(d.ep.Config.Name, deliveries[i].Events, receipts[i])
	}
	if len(newEvents) > 0 {
		s.Publish(newEvents...)
	}
	s.Logger.Debug("appended from the spool", "deliveries", len(queued), "new", len(newEvents))
	return nil
}

// isDataError returns true if PostgreSQL rejects the data of a delivery, which it will do every
// time (SQLSTATE classes 22 and 23). Other errors, such as a missing permission or column, are not
// caused by the delivery.
func isDataError(err error) bool {
	code := postgres.Code(err)
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23")
}

// quarantine moves a record that can never be appended to a file of its own. The log names the file
// and the reason.
func (s *Server) quarantine(rec spool.Record, cause error) error {
	name, err := s.Spool.Quarantine(rec)
	if err != nil {
		return err
	}
	s.metrics.quarantined.Inc()
	s.Logger.Error("an acknowledged delivery cannot be appended: it is quarantined in a file of the spool's folder",
		"file", name, "error", cause)
	return nil
}
