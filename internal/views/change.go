package views

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// Request says what to create, update or drop.
type Request struct {
	// Source is the source; "" in an update for all.
	Source string
	// ObjectType is the type; "" for all types that the source has objects of.
	ObjectType string
	// Schema is the schema of a source that has none yet; "" for one named after the source.
	Schema string
	// Kinds are the kinds of columns for some fields, instead of those that the sample shows.
	Kinds map[string]Kind
	// Indexes are columns of the type's view that get an index.
	Indexes []string
	// Actor and Reason are written to the audit.
	Actor  adminauth.Actor
	Reason string
}

// Result is what was done with one view.
type Result struct {
	View
	Created bool     `json:"created"`
	Added   []Column `json:"added"`
	// Notes say which fields have no column, and which columns do not fit their field any more.
	Notes []string `json:"notes"`
	// changed: the view was created, changed or dropped.
	changed bool
}

// change is a transaction that changes views.
type change struct {
	pgx.Tx
	Request
	number   int32
	provider provider.Provider
	have     []View
	// reserved are the words that SQL reads as something else than a column, such as user.
	reserved []string
}

const reservedSQL = `SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')`

// lockSQL allows one change of typed views at a time.
const lockSQL = `SELECT pg_advisory_xact_lock(hashtext('postern typed views'))`

// inChange runs do in a transaction, as postern_maintenance, with an audit entry for the views that
// do returns.
func inChange(ctx context.Context, pool *pgxpool.Pool, action string, r Request, do func(context.Context,
	*change) ([]Result, error)) (out []Result, err error) {
	err = postgres.InTx(ctx, pool, action, changeTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+lockTimeout+"'"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lockSQL); err != nil {
			return err
		}
		c := &change{Tx: tx, Request: r}
		if c.have, err = List(ctx, tx, r.Source); err != nil {
			return err
		}
		if c.reserved, err = postgres.Collect(ctx, tx, pgx.RowTo[string], reservedSQL); err != nil {
			return err
		}
		if out, err = do(ctx, c); err != nil {
			return explainLock(err)
		}
		if !slices.ContainsFunc(out, func(v Result) bool { return v.changed }) {
			return nil
		}
		return adminauth.WriteAudit(ctx, tx, r.Actor, adminauth.AuditEntry{Action: action, Target: describe(out),
			Reason: r.Reason})
	})
	return out, err
}

// describe names views for the audit.
func describe(results []Result) string {
	var names []string
	for _, r := range results {
		names = append(names, r.FullName())
	}
	return strings.Join(names, ", ")
}

// explainLock explains an error of a change that waited too long for a query.
func explainLock(err error) error {
	if postgres.Code(err) == "55P03" {
		return fmt.Errorf("a query reads one of the views for more than %s, so nothing was changed: repeat the "+
			"command later (%w)", lockTimeout, err)
	}
	return err
}

// Create creates the views of a source, or of one of its types, and adds columns to those that
// exist. pool is connected as postern_maintenance, with a login that may create schemas. Errors:
// ErrNotFound, ErrInvalid.
func Create(ctx context.Context, pool *pgxpool.Pool, r Request) ([]Result, error) {
	out, err := inChange(ctx, pool, "views create", r, func(ctx context.Context, c *change) ([]Result, error) {
		types, err := c.readSource(ctx, r.Source)
		if err != nil {
			return nil, err
		}
		if len(types) == 0 {
			return nil, fmt.Errorf("%w: source %s has no objects yet, and their fields become the columns: "+
				"send or reconcile events first", events.ErrNotFound, r.Source)
		}
		if r.ObjectType != "" {
			accounts, ok := types[r.ObjectType]
			if !ok {
				return nil, fmt.Errorf("%w: source %s has no object of type %s; its types are %s", events.ErrNotFound,
					r.Source, r.ObjectType, strings.Join(slices.Sorted(maps.Keys(types)), ", "))
			}
			types = map[string][]string{r.ObjectType: accounts}
		}
		schema, err := c.schema(ctx)
		if err != nil {
			return nil, err
		}
		var out []Result
		var samples [][]seenField
		names := slices.Sorted(maps.Keys(types))
		for _, objectType := range names {
			seen, err := c.sample(ctx, objectType, types[objectType])
			if err != nil {
				return nil, err
			}
			samples = append(samples, seen)
		}
		for i, objectType := range names {
			result, err := c.view(ctx, schema, objectType, samples[i])
			if err != nil {
				return nil, err
			}
			out = append(out, *result)
		}
		return out, nil
	})
	for i := range out {
		if err == nil {
			err = createIndexes(ctx, pool, &out[i].View, r.Indexes)
		}
	}
	return out, err
}

// Update adds columns for new fields to the views of a source, or of all. The results are the views
// with new columns or notes. It reads all samples before it locks a view. Errors: ErrNotFound.
func Update(ctx context.Context, pool *pgxpool.Pool, r Request) ([]Result, error) {
	return inChange(ctx, pool, "views update", r, func(ctx context.Context, c *change) (out []Result, err error) {
		if len(c.have) == 0 && r.Source != "" {
			return nil, fmt.Errorf("%w: source %[2]s has no typed views; see postern views list, or create them with "+
				"postern views create %[2]s", events.ErrNotFound, r.Source)
		}
		var types map[string][]string
		var lockViews []func() (*Result, error)
		source := ""
		for _, v := range c.have {
			if v.Source != source {
				source = v.Source
				if types, err = c.readSource(ctx, source); errors.Is(err, events.ErrNotFound) {
					types = nil // the source is not there any more, so no new fields are seen
				} else if err != nil {
					return nil, err
				}
			}
			if types[v.ObjectType] == nil {
				continue
			}
			of := *c
			seen, err := of.sample(ctx, v.ObjectType, types[v.ObjectType])
			if err != nil {
				return nil, err
			}
			lockViews = append(lockViews, func() (*Result, error) { return of.view(ctx, v.Schema, v.ObjectType, seen) })
		}
		for _, lockView := range lockViews {
			result, err := lockView()
			if err != nil {
				return nil, err
			}
			if len(result.Added)+len(result.Notes) > 0 {
				out = append(out, *result)
			}
		}
		return out, nil
	})
}

// readSource finds a source and its types, each with some of its accounts. Errors: ErrNotFound.
func (c *change) readSource(ctx context.Context, source string) (map[string][]string, error) {
	var name string
	err := c.QueryRow(ctx, `SELECT number, provider FROM sources WHERE name = $1`, source).Scan(&c.number, &name)
	if errors.Is(err, pgx.ErrNoRows) {
		known, err := postgres.Collect(ctx, c, pgx.RowTo[string], `SELECT name FROM sources ORDER BY 1`)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("source %s: %w: the registered sources are %s", source, events.ErrNotFound,
			cmp.Or(strings.Join(known, ", "), "none"))
	}
	if err != nil {
		return nil, err
	}
	c.Source = source
	c.provider, _ = all.Named(name)
	return readTypes(ctx, c, c.number)
}

// schema returns the schema of the source's views, and creates it where there is none.
func (c *change) schema(ctx context.Context) (string, error) {
	schema := c.Schema
	if schema == "" {
		if schema = safeName(c.Source); isReserved(schema) {
			schema = "source_" + schema
		}
	} else if safeName(schema) != schema || isReserved(schema) {
		return "", fmt.Errorf("%w: schema %q: use a to z, 0 to 9 and _, and none of public, postern, mirror and pg_*",
			events.ErrInvalid, schema)
	}
	schemas, err := readSchemas(ctx, c, c.Source)
	if err != nil {
		return "", err
	}
	for existing := range schemas {
		if c.Schema != "" && c.Schema != existing {
			return "", fmt.Errorf("%w: the views of source %s are in schema %s: drop them first", events.ErrInvalid,
				c.Source, existing)
		}
		return existing, nil
	}
	state, err := c.readSchema(ctx, schema)
	if state == otherViews && c.Schema == "" {
		schema = withHash(schema, c.Source, 6)
		state, err = c.readSchema(ctx, schema)
	}
	switch {
	case err != nil:
		return "", err
	case state == foreign || state == otherViews:
		return "", fmt.Errorf("%w: schema %s exists already, and is not one of Postern's: name another with --schema",
			events.ErrInvalid, schema)
	case state == missing:
		if err := c.createSchema(ctx, schema); err != nil {
			return "", err
		}
	}
	for _, sql := range []string{"COMMENT ON SCHEMA " + quote(schema) + " IS " + quoteLiteral(schemaComment(c.Source)),
		"GRANT USAGE ON SCHEMA " + quote(schema) + " TO postern_reader, postern_operator"} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	return schema, nil
}

// schemaState says who uses a schema.
type schemaState int

const (
	missing schemaState = iota
	// usable: it is empty, and postern_maintenance owns it.
	usable
	otherViews
	foreign
)

// schemaSQL returns whether postern_maintenance owns a schema, its comment, and whether it is
// empty.
const schemaSQL = `
SELECT n.nspowner = 'postern_maintenance'::regrole, coalesce(obj_description(n.oid, 'pg_namespace'), ''),
  NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid)
FROM pg_namespace n WHERE n.nspname = $1`

func (c *change) readSchema(ctx context.Context, schema string) (schemaState, error) {
	var owned, empty bool
	var comment string
	err := c.QueryRow(ctx, schemaSQL, schema).Scan(&owned, &comment, &empty)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return missing, nil
	case err != nil:
		return missing, err
	case owned && comment == "" && empty:
		return usable, nil
	case owned && strings.HasPrefix(comment, "Typed views of source "):
		return otherViews, nil
	}
	return foreign, nil
}

// createSchema creates a schema with the rights of the login, and gives it to postern_maintenance.
func (c *change) createSchema(ctx context.Context, schema string) error {
	create := "CREATE SCHEMA " + quote(schema) + " AUTHORIZATION postern_maintenance"
	for _, sql := range []string{"SET LOCAL ROLE NONE", create, "SET LOCAL ROLE postern_maintenance"} {
		_, err := c.Exec(ctx, sql)
		if postgres.Code(err) == "42501" {
			return fmt.Errorf("the login may not create schemas: set database.maintenance_url to the login of "+
				"postern migrate up, or run as an administrator: %s; and repeat the command (%w)", create, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sample reads the fields of a type.
func (c *change) sample(ctx context.Context, objectType string, accounts []string) ([]seenField, error) {
	seen, err := readFields(ctx, c, c.number, objectType, accounts)
	if err != nil {
		return nil, fmt.Errorf("read fields of type %s: %w", objectType, err)
	}
	return seen, nil
}

// view creates the view of a type, or adds the columns that it lacks. It locks the view until the
// transaction ends.
func (c *change) view(ctx context.Context, schema, objectType string, seen []seenField) (out *Result, err error) {
	out = &Result{View: View{number: c.number, Source: c.Source, ObjectType: objectType, Schema: schema,
		Columns: []Column{}, Indexes: []string{}}, Added: []Column{}, Notes: []string{}}
	i := slices.IndexFunc(c.have, func(v View) bool { return v.Source == c.Source && v.ObjectType == objectType })
	if out.Created = i < 0; !out.Created {
		out.View = c.have[i]
	} else if out.Name, err = c.viewName(ctx, schema, objectType); err != nil {
		return nil, err
	}
	added, noValue, beyond := addColumns(out.Columns, seen, c.Kinds, c.reserved, c.unit)
	out.Added = append(out.Added, added...)
	if out.Created {
		out.parts = newParts(added)
	} else {
		for _, column := range added {
			out.parts = append(out.parts, fieldPart(column))
		}
	}
	if err := out.prepareIndexes(c.Indexes); err != nil {
		return nil, err
	}
	if out.changed = out.Created || len(c.Indexes)+len(added) > 0; out.changed {
		err = c.replace(ctx, out.View)
	}
	out.Columns = out.fieldColumns()
	out.note(seen, c.Kinds, noValue, beyond)
	return out, err
}

// unit returns the unit of a field as the source's provider describes it.
func (c *change) unit(field string) provider.FieldUnit { return unitOf(c.provider, field) }

// note adds notes about fields without a column, and about columns whose field has other values.
func (r *Result) note(seen []seenField, kinds map[string]Kind, noValue, beyond int) {
	find := func(c Column) int {
		return slices.IndexFunc(seen, func(f seenField) bool { return f.Name == c.Field })
	}
	for _, c := range r.Added {
		if find(c) < 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("no object in the sample has a field %s, so column %s is null",
				c.Field, c.Name))
		}
	}
	for _, c := range r.Columns {
		if kind := kinds[c.Field]; kind != "" && kind != c.Kind {
			r.Notes = append(r.Notes, fmt.Sprintf("column %s exists already as %s (%s): a type never changes; drop "+
				"the view and create it again", c.Name, c.Type, c.Kind))
		}
		if i := find(c); i >= 0 && !seen[i].fits(c.Kind) {
			r.Notes = append(r.Notes, fmt.Sprintf("column %s is %s, but its field has other values too, which "+
				"are null in the column: read them in state; to change the type, drop the view and create it again",
				c.Name, c.Type))
		}
	}
	if r.Created && noValue > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d fields have no value yet, and get a column with their first one",
			noValue))
	}
	if beyond > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d fields have no column, because a view has at most %d: read them in "+
			"state", beyond, maxColumns))
	}
}

// relationsSQL returns the names of everything in a schema that a view's name must differ from.
const relationsSQL = `
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
UNION SELECT t.typname::text FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname = $1`

// viewName returns a name for a new view.
func (c *change) viewName(ctx context.Context, schema, objectType string) (string, error) {
	names, err := postgres.Collect(ctx, c, pgx.RowTo[string], relationsSQL, schema)
	if err == nil && len(names) >= 2*maxViews { // each view has an array type too
		err = fmt.Errorf("%w: source %s has more than %d types: create the views of single types", events.ErrInvalid,
			c.Source, maxViews)
	}
	if err != nil {
		return "", err
	}
	return uniqueName(safeName(objectType), objectType, func(n string) bool { return slices.Contains(names, n) }), nil
}

// replace writes the definition of a view, its comments and its grants.
func (c *change) replace(ctx context.Context, v View) error {
	definition, err := v.definition(slices.Concat(v.Indexes, c.Indexes))
	if err != nil {
		return err
	}
	full := quote(v.Schema, v.Name)
	statements := []string{definition, "COMMENT ON VIEW " + full + " IS " +
		quoteLiteral(viewComment(v.Source, v.ObjectType)),
		"GRANT SELECT ON " + full + " TO postern_reader, postern_operator"}
	for _, p := range v.parts {
		statements = append(statements, "COMMENT ON COLUMN "+full+"."+quote(p.name)+" IS "+quoteLiteral(p.comment))
	}
	for _, sql := range statements {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("write view %s: %w", v.FullName(), err)
		}
	}
	return nil
}
