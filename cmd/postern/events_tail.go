package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// tailInterval is the time between two polls, and maxTailed how many events each may print.
const (
	tailInterval = 500 * time.Millisecond
	maxTailed    = 1 << 30
)

func newEventsTailCommand(c *cli) *cobra.Command {
	return command{
		use: "tail", short: "Follow events as they arrive",
		long: `Follow events as they arrive, until interrupted. With -o json each event is one line.
The output is for watching only. Programs read the feed postern.events.> instead.`,
		example: `  postern events tail
  postern events tail --type 'invoice.*' --since 10m -o json`,
		params: operations.Params(operations.EventFilter{}),
		run: func(x *call) error {
			filter, err := parse[operations.EventFilter](x)
			if err != nil {
				return err
			}
			follower := &operations.Follower{Pool: x.pool, Interval: tailInterval, MaxRows: maxTailed,
				Logger: slog.New(slog.NewTextHandler(x.errs, nil))}
			batches, err := follower.Subscribe(x.ctx, operations.TailParams{EventFilter: filter})
			if err != nil {
				return err
			}
			for batch := range batches {
				for _, e := range batch.Items {
					if err := x.printTailed(e); err != nil {
						return err
					}
				}
			}
			if x.ctx.Err() == nil {
				return errors.New("the events could not be read: check PostgreSQL, and follow again")
			}
			return nil // an interruption ends the command normally
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
