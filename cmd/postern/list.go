package main

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// listCommand builds a `list` command from an operation that lists items T by parameters P.
type listCommand[T, P any] struct {
	// subject is the plural noun after "List" in the help, such as "effects, the newest first".
	subject   string
	example   string
	query     func(context.Context, *pgxpool.Pool, P) (events.Page[T], error)
	columns   []column[T]
	emptyText string
	// notes, if set, returns lines for standard error below a table.
	notes func(*call) ([]string, error)
}

func (l listCommand[T, P]) newCommand(c *cli) *cobra.Command {
	return command{use: "list", short: "List " + l.subject, example: l.example,
		params: operations.Params(*new(P)), moreFlags: limitFlag,
		check: checkLimit, run: l.run}.build(c)
}

func limitFlag(cmd *cobra.Command) {
	cmd.Flags().Int("limit", events.DefaultLimit, "maximum number to list; 0: all")
}

func checkLimit(x *call) error {
	if x.limit() < 0 {
		return usagef("--limit must not be negative; 0 lists all")
	}
	return nil
}

func (x *call) limit() int {
	n, err := x.cmd.Flags().GetInt("limit")
	must(err)
	return n
}

func (l listCommand[T, P]) run(x *call) error {
	p, err := parse[P](x)
	if err != nil {
		return err
	}
	return l.print(x, p)
}

// print prints the items that the parameters select.
func (l listCommand[T, P]) print(x *call, p P) error {
	out := &listPrinter[T]{out: x.out, json: x.json(), columns: l.columns, emptyText: l.emptyText}
	searched, err := readPages(x.ctx, x.pool, l.query, p, x.limit(), out.add)
	if err == nil {
		err = out.end()
	}
	if err != nil {
		return err
	}
	if l.notes != nil && !x.json() {
		lines, err := l.notes(x)
		for _, line := range lines {
			fmt.Fprintln(x.errs, "postern:", escapeControl(line))
		}
		if err != nil {
			return err
		}
	}
	if !searched.IsZero() {
		fmt.Fprintf(x.errs, "postern: searched back to %s; continue with --until %s\n", searched,
			events.Instant{Time: searched.Add(time.Millisecond)})
	}
	return nil
}

// searchTimeout limits a search of contents over several pages.
const searchTimeout = 20 * time.Second

// readPages reads as many pages as the limit needs; a page may be short without being the last. It
// returns how far back a search of contents has searched if it stopped before the end.
func readPages[T, P any](ctx context.Context, pool *pgxpool.Pool, query func(context.Context, *pgxpool.Pool,
	P) (events.Page[T], error), p P, limit int, add func([]T) error) (searched events.Instant, err error) {
	began, cursor := time.Now(), ""
	for remaining := limit; ; {
		size := events.MaxLimit
		if limit > 0 {
			size = min(remaining, size)
		}
		any(&p).(interface {
			SetPage(limit int, cursor string)
		}).SetPage(size, cursor)
		page, err := query(ctx, pool, p)
		if err != nil {
			return searched, err
		}
		if err := add(page.Items); err != nil {
			return searched, err
		}
		remaining -= len(page.Items)
		searching := !page.SearchedTo.IsZero()
		if page.Next == "" || limit > 0 && remaining == 0 || searching && time.Since(began) > searchTimeout {
			return page.SearchedTo, nil
		}
		cursor = page.Next
	}
}

// filterFlags adds a flag for each parameter of a query, except those that the command line does
// not need.
func filterFlags(cmd *cobra.Command, params []operations.Param) {
	for _, p := range params {
		if p.Name == "limit" || p.Name == "cursor" {
			continue
		}
		name := flagName(p.Name)
		cmd.Flags().String(name, "", p.Help)
		if p.Type == reflect.TypeFor[bool]() || p.Type == reflect.TypeFor[*bool]() {
			cmd.Flags().Lookup(name).NoOptDefVal = "true"
		}
		if p.Name == "object_id" {
			cmd.Flags().Var(cmd.Flags().Lookup(name).Value, objectFlag, "the same as --"+name)
		}
	}
}

// filterValues returns the given flags as parameters, also those with an empty value.
func filterValues(cmd *cobra.Command, params []operations.Param) map[string]string {
	values := map[string]string{}
	for _, p := range params {
		f := cmd.Flags().Lookup(flagName(p.Name))
		short := p.Name == "object_id" && cmd.Flags().Changed(objectFlag)
		if f != nil && (f.Changed || short) && p.Name != "limit" {
			values[p.Name] = f.Value.String()
		}
	}
	return values
}

// objectFlag is the short name of --object-id.
const objectFlag = "object"

func flagName(param string) string { return strings.ReplaceAll(param, "_", "-") }
