package views

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// createIndexes creates indexes on columns of a view, while objects are applied. An index that
// exists is left as it is.
func createIndexes(ctx context.Context, pool *pgxpool.Pool, v *View, columns []string) error {
	if len(columns) == 0 {
		return nil
	}
	for _, name := range columns {
		p := v.parts[slices.IndexFunc(v.parts, func(p part) bool { return p.name == name })]
		if slices.Contains(v.Indexes, name) {
			continue
		}
		if err := createIndex(ctx, pool, *v, p); err != nil {
			return fmt.Errorf("create an index on column %s of view %s, which exists now: %w", name, v.FullName(), err)
		}
		v.Indexes = append(v.Indexes, name)
	}
	return nil
}

// prepareIndexes checks columns that get an index. It makes text columns read short texts only, and
// adds a note about each: a longer text does not fit into an index, and would stop the apply
// transaction. Errors: ErrInvalid.
func (r *Result) prepareIndexes(columns []string) error {
	for _, name := range columns {
		i := slices.IndexFunc(r.parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return fmt.Errorf("%w: view %s has no column %s; see postern views list -o json", events.ErrInvalid,
				r.FullName(), name)
		}
		p := r.parts[i]
		switch {
		case p.column == nil && !slices.Contains([]string{"object_id", "account", "updated_at"}, p.reads),
			p.column != nil && (p.column.Kind == JSON || p.column.Kind == Boolean):
			return fmt.Errorf("%w: an index on column %s helps no query: index a text, a number or a time",
				events.ErrInvalid, name)
		case p.column != nil && p.column.Kind == Text:
			c := *p.column
			c.Kind = IndexedText
			r.parts[i] = fieldPart(c)
			r.Notes = append(r.Notes, fmt.Sprintf("column %s: texts of more than 2,000 bytes are null in it from now "+
				"on, because they do not fit into an index; state has them", name))
		}
	}
	return nil
}

// validSQL returns whether an index can be used; no row if it does not exist.
const validSQL = `SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass($1)`

// createIndex creates an index without a lock that stops changes. After an interruption, the
// unfinished index is created again.
func createIndex(ctx context.Context, pool *pgxpool.Pool, v View, p part) error {
	expression := p.reads
	if p.column != nil {
		expression = p.column.expression("state")
	}
	name := indexPrefix(v) + hash(expression, 8)
	var valid bool
	err := pool.QueryRow(ctx, validSQL, "postern."+name).Scan(&valid)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	var statements []string
	if err == nil && !valid {
		statements = append(statements, "DROP INDEX CONCURRENTLY postern."+name)
	}
	if !valid {
		statements = append(statements, fmt.Sprintf("CREATE INDEX CONCURRENTLY %s ON postern.objects ((%s)) WHERE %s",
			name, expression, condition(v, "")))
	}
	statements = append(statements, "COMMENT ON INDEX postern."+name+" IS "+quoteLiteral(indexComment(p.name)))
	for _, sql := range statements {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// Drop drops the views of a source, or of one of its types, with their indexes, and the schema with
// its last view. An interrupted drop of indexes can be repeated. Errors: ErrNotFound, ErrInvalid.
func Drop(ctx context.Context, pool *pgxpool.Pool, r Request) ([]Result, error) {
	var number int32
	err := pool.QueryRow(ctx, numberSQL, r.Source).Scan(&number)
	if err != nil {
		return nil, err
	}
	out, err := inChange(ctx, pool, "views drop", r, func(ctx context.Context, c *change) (out []Result, err error) {
		for _, v := range c.have {
			if r.ObjectType != "" && v.ObjectType != r.ObjectType {
				continue
			}
			if _, err := c.Exec(ctx, "DROP VIEW "+quote(v.Schema, v.Name)); err != nil {
				return nil, explainDependents(err, v)
			}
			out = append(out, Result{View: v, Added: []Column{}, Notes: []string{}, changed: true})
		}
		if len(out) == 0 || len(out) < len(c.have) {
			return out, nil
		}
		names, err := postgres.Collect(ctx, c, pgx.RowTo[string], relationsSQL, out[0].Schema)
		if err == nil && len(names) == 0 {
			_, err = c.Exec(ctx, "DROP SCHEMA "+quote(out[0].Schema))
		}
		return out, err
	})
	if err != nil {
		return nil, err
	}
	prefix := fmt.Sprintf(indexNames, number)
	if r.ObjectType != "" {
		prefix = indexPrefix(View{number: number, ObjectType: r.ObjectType})
	}
	dropped, err := dropIndexes(ctx, pool, prefix)
	if err == nil && len(out)+dropped == 0 {
		err = fmt.Errorf("%w: source %s has no such view; see postern views list", events.ErrNotFound, r.Source)
	}
	return out, err
}

// numberSQL returns the number of a source, 0 for one that does not exist.
const numberSQL = `SELECT coalesce((SELECT number FROM sources WHERE name = $1), 0)`

// explainDependents explains an error of a view that something else uses.
func explainDependents(err error, v View) error {
	var pg *pgconn.PgError
	if postgres.Code(err) != "2BP01" || !errors.As(err, &pg) {
		return err
	}
	return fmt.Errorf("%w: view %s is used, so no view was dropped: drop first what uses it: %s", events.ErrInvalid,
		v.FullName(), pg.Detail)
}

// dropIndexes drops the indexes of a prefix, while objects are applied.
func dropIndexes(ctx context.Context, pool *pgxpool.Pool, prefix string) (dropped int, err error) {
	names, err := postgres.Collect(ctx, pool, pgx.RowTo[string], indexNamesSQL, prefix)
	for _, name := range names {
		if err == nil {
			_, err = pool.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+quote("postern", name))
		}
	}
	if err != nil {
		return 0, fmt.Errorf("the views are dropped, but not all their indexes: repeat the command (%w)", err)
	}
	return len(names), nil
}
