package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
)

// reportSpools reports what gateways have reported about their spools. It skips spools whose
// folders were checked.
func (w *verification) reportSpools(ctx context.Context) error {
	checked := map[string]bool{}
	for i := range w.spools {
		checked[w.spools[i].Name] = true
	}
	for cursor := ""; ; {
		page, err := redaction.Spools(ctx, w.snapshot.txs[0], cursor, events.MaxLimit)
		if err != nil {
			return fmt.Errorf("read the reports of gateways about their spools: %w", err)
		}
		for i := range page.Items {
			if s := &page.Items[i]; !checked[s.Name] {
				w.reportSpool(s)
			}
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}

// reportSpool reports one spool.
func (w *verification) reportSpool(s *redaction.Spool) {
	name := fmt.Sprintf("spool %s (%s)", s.Name, s.Location)
	if s.Deliveries != nil && *s.Deliveries > 0 {
		w.reportWaiting("acknowledged deliveries in "+name+", as reported by its gateway",
			waitCount{count: *s.Deliveries, since: waitingSince(s).Time},
			"start that gateway; if it runs, its log says why it does not append. postern spool list shows "+
				"its reports; if its disk is lost: postern spool remove "+s.Name)
	}
	const inside = "it may hold acknowledged deliveries that are not in the log; postern " +
		"verify --spool DIR on its machine checks it"
	switch silent := w.snapshot.at.Sub(s.ReportedAt.Time); {
	case s.ReportedAt.IsZero():
		w.results.note("the gateway has never reported the content of "+name+": "+inside, 1)
	case silent > redaction.SpoolSilentAfter:
		w.results.note(fmt.Sprintf("the last report about %s was at %s (%s ago): %s", name, s.ReportedAt,
			silent.Round(time.Second), inside), 1)
	}
}

// waitingSince returns since when the oldest delivery in a spool waits, as reported by its gateway.
// Without such a report, it returns when the spool was last empty, because the delivery is not
// older.
func waitingSince(s *redaction.Spool) events.Instant {
	if s.OldestAt.After(s.EmptyAt.Time) {
		return s.OldestAt
	}
	for _, at := range []events.Instant{s.EmptyAt, s.RegisteredAt} {
		if !at.IsZero() {
			return at
		}
	}
	return s.ReportedAt
}
