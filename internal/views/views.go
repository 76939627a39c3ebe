// Package views creates a typed view for each type of object: a schema for each source, with a
// column for each field. PostgreSQL's catalogue stores what exists: comments on schemas, views and
// columns have the source, the type, and the field with its kind. The definitions belong to
// postern_maintenance, because the daemons own nothing.
package views

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// maxColumns limits the columns of a view that read fields. PostgreSQL allows 1,600 in all.
	maxColumns = 500
	// maxViews limits the views of a source.
	maxViews = 500
	// changeTimeout limits the transaction of a change, lockTimeout its wait for a view that a
	// query reads.
	changeTimeout = 2 * time.Minute
	lockTimeout   = "10s"
)

// View is a typed view.
type View struct {
	Source     string `json:"source"`
	ObjectType string `json:"object_type"`
	Schema     string `json:"schema"`
	Name       string `json:"view"`
	// Columns are those that read fields, in the view's order.
	Columns []Column `json:"columns"`
	// Indexes are the names of the indexed columns.
	Indexes []string `json:"indexes"`
	// parts are all columns in the view's order.
	parts []part
	// number is that of the source, 0 if the source does not exist any more.
	number int32
}

// FullName is the view's name in SQL, as short as possible.
func (v View) FullName() string { return plain(v.Schema) + "." + v.Name }

// plain returns a name, in quotes if it has other characters than safeName allows.
func plain(name string) string {
	if safeName(name) == name {
		return name
	}
	return quote(name)
}

func schemaComment(source string) string { return "Typed views of source " + quoteJSON(source) + "." }

func viewComment(source, objectType string) string {
	return "Objects of type " + quoteJSON(objectType) + " of source " + quoteJSON(source) + "."
}

// indexNames begins the names of the indexes of a source's views.
const indexNames = "objects_view_%d_"

// indexPrefix begins the names of the indexes of a view.
func indexPrefix(v View) string {
	return fmt.Sprintf(indexNames, v.number) + hash(v.ObjectType, 8) + "_"
}

func indexComment(column string) string {
	return "Index of column " + quoteJSON(column) + " of a typed view."
}

// condition selects the objects of a view.
func condition(v View, prefix string) string {
	return fmt.Sprintf("%[1]ssource = %[2]d AND %[1]sobject_type = %[3]s", prefix, v.number, quoteLiteral(v.ObjectType))
}

// schemasSQL returns the schemas of typed views.
const schemasSQL = `
SELECT n.nspname::text, obj_description(n.oid, 'pg_namespace') FROM pg_namespace n
WHERE n.nspowner = 'postern_maintenance'::regrole
  AND starts_with(obj_description(n.oid, 'pg_namespace'), 'Typed views of source ')
ORDER BY 1`

// columnsSQL returns the columns of all views in a schema, with their comments and those of the
// views.
const columnsSQL = `
SELECT c.relname::text, coalesce(obj_description(c.oid, 'pg_class'), ''), a.attname::text,
  coalesce(col_description(c.oid, a.attnum), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = $1 AND c.relkind = 'v' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY c.relname, a.attnum`

// indexesSQL returns the comments of the indexes that can be used, of a prefix.
const indexesSQL = `
SELECT coalesce(obj_description(c.oid, 'pg_class'), '') FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = 'postern.objects'::regclass AND i.indisvalid AND starts_with(c.relname::text, $1) ORDER BY c.oid`

// indexNamesSQL returns the names of all indexes of a prefix.
const indexNamesSQL = `
SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = 'postern.objects'::regclass AND starts_with(c.relname::text, $1) ORDER BY c.oid`

// readSchemas returns the schemas of typed views with their sources: of one source, or of all if
// source is "".
func readSchemas(ctx context.Context, db postgres.Querier, source string) (map[string]string, error) {
	var schema, comment string
	schemas := map[string]string{}
	err := postgres.ForEach(ctx, db, schemasSQL, nil, []any{&schema, &comment}, func() error {
		of, _, ok := cutJSON(strings.TrimPrefix(comment, "Typed views of source "))
		if ok && comment == schemaComment(of) && (source == "" || of == source) {
			schemas[schema] = of
		}
		return nil
	})
	return schemas, err
}

// List returns the typed views of a source, or of all if source is "".
func List(ctx context.Context, db postgres.Querier, source string) ([]View, error) {
	schemas, err := readSchemas(ctx, db, source)
	var found []View
	numbers := map[string]int32{}
	if err == nil {
		var name string
		var number int32
		err = postgres.ForEach(ctx, db, `SELECT name, number FROM sources`, nil, []any{&name, &number}, func() error {
			numbers[name] = number
			return nil
		})
	}
	for schema, source := range schemas {
		var views []View
		if err == nil {
			views, err = listSchema(ctx, db, View{Source: source, Schema: schema, number: numbers[source]})
		}
		found = append(found, views...)
	}
	if err == nil {
		err = addIndexes(ctx, db, found)
	}
	if err != nil {
		return nil, fmt.Errorf("list typed views: %w", err)
	}
	slices.SortFunc(found, func(a, b View) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Name, b.Name))
	})
	return found, nil
}

// listSchema returns the views of the source and schema of a view. Other views in it are left out.
func listSchema(ctx context.Context, db postgres.Querier, of View) (found []View, err error) {
	var name, comment, column, field string
	targets := []any{&name, &comment, &column, &field}
	err = postgres.ForEach(ctx, db, columnsSQL, []any{of.Schema}, targets, func() error {
		objectType, _, ok := cutJSON(strings.TrimPrefix(comment, "Objects of type "))
		if !ok || comment != viewComment(of.Source, objectType) {
			return nil
		}
		if len(found) == 0 || found[len(found)-1].Name != name {
			found = append(found, View{Source: of.Source, ObjectType: objectType, Schema: of.Schema, Name: name,
				Columns: []Column{}, Indexes: []string{}, number: of.number})
		}
		v := &found[len(found)-1]
		v.parts = append(v.parts, readPart(column, field))
		return nil
	})
	for i := range found {
		found[i].Columns = found[i].fieldColumns()
	}
	return found, err
}

// addIndexes adds the names of the indexed columns to views.
func addIndexes(ctx context.Context, db postgres.Querier, found []View) error {
	for i := range found {
		v := &found[i]
		comments, err := postgres.Collect(ctx, db, pgx.RowTo[string], indexesSQL, indexPrefix(*v))
		if err != nil {
			return err
		}
		for _, comment := range comments {
			// An index without its comment is of an interrupted command, and counts as missing.
			if column, _, ok := cutJSON(strings.TrimPrefix(comment, "Index of column ")); ok {
				v.Indexes = append(v.Indexes, column)
			}
		}
	}
	return nil
}

// part is a column of a view. It reads a column of the objects, or a field of the state.
type part struct {
	name, comment string
	// reads is the column, or an expression that begins with one and has the others with o.
	reads  string
	column *Column
}

func fieldPart(c Column) part { return part{name: c.Name, comment: c.comment(), column: &c} }

// readPart reads a column from its comment. It reads nothing if Postern did not write the comment.
func readPart(name, comment string) part {
	if c, ok := readComment(name, comment); ok {
		return fieldPart(c)
	}
	for _, p := range fixedColumns {
		if p.comment == comment {
			p.name = name
			return p
		}
	}
	return part{name: name}
}

// fieldColumns returns the columns that read fields.
func (v *View) fieldColumns() []Column {
	columns := []Column{}
	for _, p := range v.parts {
		if p.column != nil {
			columns = append(columns, *p.column)
		}
	}
	return columns
}

// newParts returns the columns of a new view.
func newParts(columns []Column) []part {
	parts := slices.Clone(fixedColumns[:leadingColumns])
	for _, c := range columns {
		parts = append(parts, fieldPart(c))
	}
	return append(parts, fixedColumns[leadingColumns:]...)
}

// definition returns the statement that creates or replaces the view.
//
// Each -> on a stored state decompresses it. So fields are read from a copy, which the subquery
// decompresses once for each row. An indexed column reads the stored state, as its index does.
func (v View) definition(indexed []string) (string, error) {
	var columns []string
	for _, p := range v.parts {
		expression := "o." + p.reads
		switch {
		case p.column != nil && slices.Contains(indexed, p.name):
			expression = p.column.expression("o.state")
		case p.column != nil:
			expression = p.column.expression("s.copy")
		case p.reads == "":
			return "", fmt.Errorf("column %s of view %s is not one that Postern wrote: drop the view and create it "+
				"again", p.name, v.FullName())
		}
		columns = append(columns, expression+" AS "+quote(p.name))
	}
	return "CREATE OR REPLACE VIEW " + quote(v.Schema, v.Name) + " AS SELECT " + strings.Join(columns, ", ") +
		" FROM postern.objects o CROSS JOIN LATERAL (SELECT o.state #> '{}' AS copy OFFSET 0) s WHERE " +
		condition(v, "o."), nil
}
