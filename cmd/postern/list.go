package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
)

// lister makes the `list` command of a kind of thing out of its query.
type lister[T any] struct {
	// what is the plural in the help.
	what    string
	example string
	params  []admin.Param
	query   func(context.Context, *pgxpool.Pool, url.Values) (events.Page[T], error)
	columns []column[T]
	none    string
	// notes, if not nil, are lines to write to standard error below a table.
	notes func(context.Context, *pgxpool.Pool, url.Values) ([]string, error)
}

func (l lister[T]) command(c *cli) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List " + l.what,
		Example: l.example,
		Args:    wantArgs(),
	}
	cmd.Flags().IntVar(&limit, "limit", events.DefaultLimit, "the most to list; 0: all")
	filterFlags(cmd, l.params)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 0 {
			return usagef("limit %d: 0 lists all", limit)
		}
		values := filterValues(cmd, l.params)
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			out := &sink[T]{out: cmd.OutOrStdout(), json: c.output == "json", columns: l.columns, none: l.none}
			searched, err := l.pages(cmd.Context(), pool, values, limit, out.add)
			if err != nil {
				return err
			}
			if err := out.end(); err != nil {
				return err
			}
			if err := l.note(cmd, c, pool, values); err != nil || searched.IsZero() {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "postern: searched back to %s; go on with --until %s\n", searched,
				events.Instant{Time: searched.Add(time.Millisecond)})
			return err
		})
	}
	return cmd
}

// note writes the lines that belong below a table.
func (l lister[T]) note(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values) error {
	if l.notes == nil || c.output == "json" {
		return nil
	}
	lines, err := l.notes(cmd.Context(), pool, values)
	for _, line := range lines {
		fmt.Fprintln(cmd.ErrOrStderr(), "postern:", plain(line))
	}
	return err
}

// searchWithin is how long a search of contents goes on, one page after the other.
const searchWithin = 20 * time.Second

// pages walks as many pages as the limit needs: a page may be short and still not be the last. It returns how far back a
// search of contents has looked that did not look at all.
func (l lister[T]) pages(ctx context.Context, pool *pgxpool.Pool, values url.Values, limit int, take func([]T) error) (searched events.Instant, err error) {
	began := time.Now()
	for left := limit; ; {
		size := events.MaxLimit
		if limit > 0 {
			size = min(left, size)
		}
		values.Set("limit", strconv.Itoa(size))
		page, err := l.query(ctx, pool, values)
		if err != nil {
			return searched, err
		}
		if err := take(page.Items); err != nil {
			return searched, err
		}
		left -= len(page.Items)
		searching := !page.SearchedTo.IsZero()
		if page.Next == "" || limit > 0 && left == 0 || searching && time.Since(began) > searchWithin {
			return page.SearchedTo, nil
		}
		values.Set("cursor", page.Next)
	}
}

// filterFlags gives a command a flag for each parameter of its query, but for those that a command line has no use for.
func filterFlags(cmd *cobra.Command, params []admin.Param) {
	for _, p := range params {
		if p.Name == "limit" || p.Name == "cursor" {
			continue
		}
		name := flagName(p.Name)
		cmd.Flags().String(name, "", p.Help)
		if p.Help == "true or false" {
			cmd.Flags().Lookup(name).NoOptDefVal = "true"
		}
		if p.Name == "object_id" {
			cmd.Flags().Var(cmd.Flags().Lookup(name).Value, objectFlag, "the same as --"+name)
		}
	}
}

// filterValues are the flags that were given, as parameters; one given empty counts.
func filterValues(cmd *cobra.Command, params []admin.Param) url.Values {
	values := url.Values{}
	for _, p := range params {
		f := cmd.Flags().Lookup(flagName(p.Name))
		short := p.Name == "object_id" && cmd.Flags().Changed(objectFlag)
		if f != nil && (f.Changed || short) && p.Name != "limit" {
			values.Set(p.Name, f.Value.String())
		}
	}
	return values
}

// objectFlag is the short name of --object-id.
const objectFlag = "object"

func flagName(param string) string { return strings.ReplaceAll(param, "_", "-") }
