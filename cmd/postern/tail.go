package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
)

const (
	tailEvery = 500 * time.Millisecond
	// tailOverlap is how far each poll looks back: ids are made in order but committed in any.
	tailOverlap = 5 * time.Second
)

func newEventsTailCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow events as they arrive",
		Long: `Follow events as they arrive, until interrupted. With -o json each event is one line.
A tail is for watching: an event whose commit takes longer than 5 s may be left out. Consumers that must not miss one
read the feed postern.events.> instead.`,
		Example: `  postern events tail
  postern events tail --type 'invoice.*' --since 10m -o json`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.EventParams)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		values := filterValues(cmd, admin.EventParams)
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			t := &tail{pool: pool, values: values, seen: map[int64]bool{}, print: c.tailPrinter(cmd)}
			return t.follow(cmd.Context())
		})
	}
	return cmd
}

// tailPrinter prints an event a line; a table's columns have fixed widths, since what will come is not known.
func (c *cli) tailPrinter(cmd *cobra.Command) func(events.Item) error {
	return func(e events.Item) error {
		if c.output == "json" {
			b, err := json.Marshal(e)
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", b)
			}
			return err
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.TrimRight(plain(fmt.Sprintf("%-27s  %-19d  %-12s  %-32s  %-40s  %s",
			e.ReceivedAt, e.ID, e.Source, e.EventType, object(e.ObjectType, e.ObjectID), e.EventID)), " "))
		return err
	}
}

// tail polls the log by id and prints each event once.
type tail struct {
	pool   *pgxpool.Pool
	values url.Values
	seen   map[int64]bool
	print  func(events.Item) error
}

func (t *tail) follow(ctx context.Context) error {
	if !t.values.Has("since") {
		if err := t.skipPast(ctx); err != nil {
			return err
		}
	}
	tick := time.NewTicker(tailEvery)
	defer tick.Stop()
	for {
		if err := t.poll(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // interrupted, which is how a tail ends
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

// skipPast makes what is there already old: everything up to the newest event, whatever its type.
func (t *tail) skipPast(ctx context.Context) error {
	page, err := admin.Events(ctx, t.pool, url.Values{"limit": {"1"}})
	if err != nil || len(page.Items) == 0 {
		return err
	}
	newest := page.Items[0].StoredAt.Time
	t.values.Set("since", newest.Add(-tailOverlap).Format(time.RFC3339Nano))
	return t.each(ctx, func(events.Item) error { return nil })
}

func (t *tail) poll(ctx context.Context) error {
	var newest time.Time
	err := t.each(ctx, func(e events.Item) error {
		newest = e.StoredAt.Time
		return t.print(e)
	})
	if err != nil || newest.IsZero() {
		return err
	}
	from := newest.Add(-tailOverlap)
	t.values.Set("since", from.Format(time.RFC3339Nano))
	for id := range t.seen {
		if events.Time(id).Before(from) {
			delete(t.seen, id)
		}
	}
	return nil
}

// each calls take for every event since the given time that was not seen before, the oldest first.
func (t *tail) each(ctx context.Context, take func(events.Item) error) error {
	var fresh []events.Item
	values := url.Values{}
	for name, given := range t.values {
		values[name] = given
	}
	_, err := eventLister.pages(ctx, t.pool, values, 0, func(items []events.Item) error {
		for _, e := range items {
			if !t.seen[e.ID] {
				t.seen[e.ID] = true
				fresh = append(fresh, e)
			}
		}
		return nil
	})
	for _, e := range slices.Backward(fresh) {
		if err == nil {
			err = take(e)
		}
	}
	return err
}
