package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/views"
)

func newViewsCommand(c *cli) *cobra.Command {
	return group("views", "Create and update typed views: a column for each field of the objects", command{
		use: "list [SOURCE]", short: "List the typed views, with their columns and indexes",
		example: "  postern views list\n  postern views list stripe -o json",
		run: func(x *call) error {
			found, err := views.List(x.ctx, x.pool, strings.Join(x.args, ""))
			if err != nil {
				return err
			}
			return printList(x, found, viewColumns, "No typed views: create them with postern views create SOURCE.")
		},
	}.build(c), command{
		use: "create SOURCE [TYPE]", short: "Create a typed view for each type of a source's objects, or for one",
		long: `Create a view for each type of a source's objects, or for one type, in a schema named
after the source. Its columns are id, account, one for each field of the state, deleted, ambiguous,
revision, updated_at and state. The names and types of fields come from the provider's description
and a sample of at most 1,000 objects. A value that does not fit the type of its column is null
there; state has it. The role postern_reader may read the views.

For a view that exists, the command adds columns for new fields, and indexes. It uses
database.maintenance_url (else database.url).`,
		example: `  postern views create stripe
  postern views create stripe subscription --index customer,created
  postern views create shop order --as note=text --schema shop_tables`,
		flags: []flag{{"index", "`columns` to index, separated by commas; needs TYPE", true},
			{"as", "`fields` whose type you choose, e.g. note=text,due=unix: " +
				strings.Join(slices.Sorted(maps.Keys(views.Choices)), ", "), true},
			{"schema", "`name` of the schema, for the first view of the source", true}, reasonFlag},
		offline: true, run: createViews,
	}.build(c), command{
		use: "update [SOURCE]", short: "Add columns for new fields to the views of a source, or to all",
		long: `Add columns for new fields to the typed views of a source, or to all. New columns are the
last ones. A column never changes its type and is never removed. Run it regularly, for example once
a day with cron. It uses database.maintenance_url (else database.url).`,
		example: "  postern views update\n  postern views update stripe",
		flags:   []flag{reasonFlag}, offline: true,
		run: func(x *call) error {
			return x.changeViews(views.Update, views.Request{Source: strings.Join(x.args, "")}, printChanged)
		},
	}.build(c), command{
		use: "drop SOURCE [TYPE]", short: "Drop the typed views of a source, or of one type, with their indexes",
		long: `Drop the typed views of a source, or of one type, with their indexes. The objects stay.
The command asks first. It uses database.maintenance_url (else database.url).`,
		example: "  postern views drop stripe subscription\n  postern views drop stripe --yes",
		flags:   []flag{reasonFlag, yesFlag}, offline: true,
		run: func(x *call) error {
			r := views.Request{Source: x.args[0], ObjectType: strings.Join(x.args[1:], "")}
			what := "the typed views of source " + r.Source
			if r.ObjectType != "" {
				what = "the typed view of type " + r.ObjectType + " of source " + r.Source
			}
			question := "Drop " + escapeControl(what) + "? Queries that use them will fail."
			if ok, err := x.confirm(question); err != nil || !ok {
				return err
			}
			return x.changeViews(views.Drop, r, func(x *call, done []views.Result) error {
				return x.printf(done, "Dropped %s.", countOf(len(done), "view"))
			})
		},
	}.build(c))
}

var viewColumns = []column[views.View]{
	{"SOURCE", func(v views.View) any { return v.Source }},
	{"TYPE", func(v views.View) any { return v.ObjectType }},
	{"VIEW", func(v views.View) any { return v.FullName() }},
	{"COLUMNS", func(v views.View) any { return len(v.Columns) }},
	{"INDEXES", func(v views.View) any { return strings.Join(v.Indexes, ", ") }},
}

func createViews(x *call) error {
	r := views.Request{Source: x.args[0], ObjectType: strings.Join(x.args[1:], ""), Schema: x.text("schema"),
		Kinds: map[string]views.Kind{}}
	if columns := x.text("index"); columns != "" {
		if r.Indexes = strings.Split(columns, ","); r.ObjectType == "" {
			return usagef("--index needs a TYPE, because it names columns of one view")
		}
	}
	if fields := x.text("as"); fields != "" {
		if r.ObjectType == "" {
			return usagef("--as needs a TYPE, because it names fields of one type")
		}
		for pair := range strings.SplitSeq(fields, ",") {
			field, kind, _ := strings.Cut(pair, "=")
			if r.Kinds[field] = views.Choices[kind]; r.Kinds[field] == "" {
				return usagef("--as %s: write FIELD=TYPE with one of the types %s", pair,
					strings.Join(slices.Sorted(maps.Keys(views.Choices)), ", "))
			}
		}
	}
	return x.changeViews(views.Create, r, printChanged)
}

// changeViews executes a change of views with the rights of their owner, and prints what was done.
func (x *call) changeViews(do func(context.Context, *pgxpool.Pool, views.Request) ([]views.Result, error),
	r views.Request, print func(*call, []views.Result) error) error {
	r.Actor, r.Reason = operator().Actor, x.reason()
	if err := operations.CheckStorable("reason", r.Reason); err != nil {
		return err
	}
	pool, err := x.connectAs(x.ctx, x.errs, maintenanceRole, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	done, err := do(x.ctx, pool, r)
	if err != nil {
		return err
	}
	return print(x, done)
}

// maxNewColumns is the maximum number of new columns that are named.
const maxNewColumns = 10

var changedColumns = []column[views.Result]{
	{"SOURCE", func(v views.Result) any { return v.Source }},
	{"TYPE", func(v views.Result) any { return v.ObjectType }},
	{"VIEW", func(v views.Result) any { return v.FullName() }},
	{"NEW COLUMNS", func(v views.Result) any {
		var names []string
		for _, c := range v.Added {
			names = append(names, c.Name)
		}
		if len(names) > maxNewColumns {
			return len(names)
		}
		return strings.Join(names, ", ")
	}},
}

func printChanged(x *call, done []views.Result) error {
	if err := printList(x, done, changedColumns, "No new fields."); err != nil || x.json() {
		return err
	}
	for _, v := range done {
		for _, note := range v.Notes {
			fmt.Fprintln(x.errs, "postern:", escapeControl(v.FullName()+": "+note))
		}
	}
	return nil
}
