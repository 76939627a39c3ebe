package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

const (
	tailInterval = 500 * time.Millisecond
	// tailOverlap is how far each poll looks back, because events are not committed in the order of
	// their ids.
	tailOverlap = 5 * time.Second
)

func newEventsTailCommand(c *cli) *cobra.Command {
	return command{
		use: "tail", short: "Follow events as they arrive",
		long: `Follow events as they arrive, until interrupted. With -o json each event is one line.
The output is for watching only: an event whose commit takes longer than 5 s may be missing.
Consumers that need every event read the feed postern.events.> instead.`,
		example: `  postern events tail
  postern events tail --type 'invoice.*' --since 10m -o json`,
		params: operations.Params(operations.EventFilter{}),
		run: func(x *call) error {
			filter, err := parse[operations.EventFilter](x)
			if err != nil {
				return err
			}
			t := &tail{pool: x.pool, filter: filter, printed: map[int64]bool{}, print: x.printTailed}
			return t.follow(x.ctx)
		},
	}.build(c)
}

// printTailed prints an event per line. Columns have fixed widths, because later events are not
// known.
func (x *call) printTailed(e events.Item) error {
	if x.json() {
		return json.NewEncoder(x.out).Encode(e)
	}
	_, err := fmt.Fprintln(x.out, strings.TrimRight(escapeControl(fmt.Sprintf("%-27s  %-19d  %-12s  %-32s  %-40s  %s",
		e.ReceivedAt, e.ID, e.Source, e.EventType, describeObject(e.ObjectType, e.ObjectID), e.EventID)), " "))
	return err
}

// tail polls the log by id and prints each event once.
type tail struct {
	pool    *pgxpool.Pool
	filter  operations.EventFilter
	printed map[int64]bool
	print   func(events.Item) error
}

func (t *tail) follow(ctx context.Context) error {
	if t.filter.Since.IsZero() {
		if err := t.skipStored(ctx); err != nil {
			return err
		}
	}
	tick := time.NewTicker(tailInterval)
	defer tick.Stop()
	for {
		if err := t.poll(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // an interruption ends the command normally
			}
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// skipStored marks all events up to the newest one as printed, whatever their type.
func (t *tail) skipStored(ctx context.Context) error {
	page, err := operations.Events(ctx, t.pool, operations.EventParams{Page: operations.Page{Limit: new(1)}})
	if err != nil || len(page.Items) == 0 {
		return err
	}
	newest := page.Items[0].StoredAt.Time
	t.filter.Since = operations.At(newest.Add(-tailOverlap))
	return t.readNew(ctx, func(events.Item) error { return nil })
}

func (t *tail) poll(ctx context.Context) error {
	var newest time.Time
	err := t.readNew(ctx, func(e events.Item) error {
		newest = e.StoredAt.Time
		return t.print(e)
	})
	if err != nil || newest.IsZero() {
		return err
	}
	from := newest.Add(-tailOverlap)
	t.filter.Since = operations.At(from)
	for id := range t.printed {
		if events.Time(id).Before(from) {
			delete(t.printed, id)
		}
	}
	return nil
}

// readNew calls use for every event since the start time that was not printed before, the oldest
// first.
func (t *tail) readNew(ctx context.Context, use func(events.Item) error) error {
	var unseen []events.Item
	p := operations.EventParams{EventFilter: t.filter}
	_, err := readPages(ctx, t.pool, operations.Events, p, 0, func(items []events.Item) error {
		for _, e := range items {
			if !t.printed[e.ID] {
				t.printed[e.ID] = true
				unseen = append(unseen, e)
			}
		}
		return nil
	})
	for _, e := range slices.Backward(unseen) {
		if err == nil {
			err = use(e)
		}
	}
	return err
}
