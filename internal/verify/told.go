package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
)

// told tells what gateways have said of their spools. Of a spool whose folder was looked at, the folder says it.
func (w *work) told(ctx context.Context) error {
	looked := map[string]bool{}
	for i := range w.spools {
		looked[w.spools[i].Name] = true
	}
	for cursor := ""; ; {
		page, err := redaction.Spools(ctx, w.view.txs[0], cursor, events.MaxLimit)
		if err != nil {
			return fmt.Errorf("look for what gateways have told of their spools: %w", err)
		}
		for i := range page.Items {
			if s := &page.Items[i]; !looked[s.Name] {
				w.toldOf(s)
			}
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}

// toldOf tells of one spool.
func (w *work) toldOf(s *redaction.Spool) {
	name := fmt.Sprintf("spool %s (%s)", s.Name, s.Place)
	if s.Deliveries != nil && *s.Deliveries > 0 {
		w.wait("deliveries that are acknowledged and in "+name+", as its gateway told", waiting{count: *s.Deliveries, since: waitsSince(s).Time},
			"start that gateway; if it runs, its log says what keeps it from appending. postern spool list shows what it tells; where its disk is gone for good: postern spool forget "+s.Name)
	}
	const inside = "it may hold acknowledged deliveries that are not in the log; postern verify --spool DIR on its machine looks inside"
	switch silent := w.view.at.Sub(s.ToldAt.Time); {
	case s.ToldAt.IsZero():
		w.tally.note("nobody has ever told what is in "+name+": "+inside, 1)
	case silent > redaction.SpoolLate:
		w.tally.note(fmt.Sprintf("nobody has told of %s since %s (%s): %s", name, s.ToldAt, silent.Round(time.Second), inside), 1)
	}
}

// waitsSince is since when the oldest delivery in a spool waits, as its gateway told; where it did not, since the spool was last empty: it is not older.
func waitsSince(s *redaction.Spool) events.Instant {
	if s.OldestAt.After(s.EmptyAt.Time) {
		return s.OldestAt
	}
	for _, at := range []events.Instant{s.EmptyAt, s.KnownSince} {
		if !at.IsZero() {
			return at
		}
	}
	return s.ToldAt
}
