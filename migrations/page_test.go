package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/golden"
)

const schemaPage = "../docs/reference/schema.md"

const schemaHead = "<!-- Generated from the comments in the schema: go test ./migrations -update. Do not edit. -->\n\n" +
	"# Tables and views\n\nFor everybody who reads Postern's data by SQL. Applications read the views of the schema\n" +
	"`mirror`, as the role `postern_reader`. The tables may change with each release.\n\n" +
	"![The tables with their keys, in groups: log, mirror, jobs, reconciliation, operations and effects]" +
	"(schema.svg)\n"

// relationsSQL returns the tables and views with their comments. A partition is part of its table.
const relationsSQL = `
SELECT n.nspname || '.' || c.relname, CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END,
	coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('postern', 'mirror') AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
	AND c.relname <> 'schema_migrations'
ORDER BY n.nspname <> 'mirror', c.relname`

// columnsSQL returns the columns of a table or view. A column of a view without a comment has the
// comment of the column of the same name in the table of the same name.
const columnsSQL = `
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
	coalesce(col_description(a.attrelid, a.attnum), (SELECT col_description(o.attrelid, o.attnum)
		FROM pg_attribute o WHERE o.attrelid = to_regclass('postern.' || split_part($1, '.', 2))
			AND o.attname = a.attname), '')
FROM pg_attribute a WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

// The page has every table and column, and each has a comment.
func TestSchemaPage_tablesAndColumns_isCurrent(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	var page strings.Builder
	page.WriteString(schemaHead)
	rows, err := db.Pool.Query(t.Context(), relationsSQL)
	must(t, err)
	type relation struct{ name, kind, comment string }
	var all []relation
	for rows.Next() {
		var r relation
		must(t, rows.Scan(&r.name, &r.kind, &r.comment))
		all = append(all, r)
	}
	must(t, rows.Err())
	page.WriteString("\nViews and tables:")
	for i, r := range all {
		end := ","
		if i == len(all)-1 {
			end = "."
		}
		fmt.Fprintf(&page, "\n[%s](#%s)%s", r.name, strings.ReplaceAll(r.name, ".", ""), end)
	}
	page.WriteByte('\n')
	for _, r := range all {
		if r.comment == "" {
			t.Errorf("%s %s has no comment", r.kind, r.name)
		}
		fmt.Fprintf(&page, "\n## %s\n\n| column | type | meaning |\n|---|---|---|\n", r.name)
		page.WriteString("| | " + r.kind + " | " + cell(r.comment) + " |\n")
		columns, err := db.Pool.Query(t.Context(), columnsSQL, r.name)
		must(t, err)
		for columns.Next() {
			var name, kind, comment string
			var required bool
			must(t, columns.Scan(&name, &kind, &required, &comment))
			if comment == "" {
				t.Errorf("column %s.%s has no comment", r.name, name)
			}
			if !required && r.kind == "table" {
				kind += ", null"
			}
			fmt.Fprintf(&page, "| `%s` | %s | %s |\n", name, kind, cell(comment))
		}
		must(t, columns.Err())
	}
	golden.Page(t, schemaPage, page.String())
}

// cell escapes a text for a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
