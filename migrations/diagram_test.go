package migrations_test

import (
	"fmt"
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/golden"
	"github.com/postern-gateway/postern/migrations"
)

const schemaDiagram = "../docs/reference/schema.svg"

// drawnTable is a table of the diagram: its key, and the columns that name rows of other tables.
type drawnTable struct {
	name string
	rows []drawnRow
}

// drawnRow is a column, or several that name one row together.
type drawnRow struct {
	columns string
	// key means that the columns belong to the primary key. target is the table that they name.
	key    bool
	target string
}

func (d drawnTable) height() int { return headHeight + len(d.rows)*rowHeight + 6 }

// The measures of the diagram, in pixels.
const (
	tableWidth, columnGap = 280, 24
	headHeight, rowHeight = 24, 17
	tableGap, titleHeight = 10, 34
	diagramColumns        = 3
)

// diagramSQL returns the columns of the tables, and whether each belongs to the primary key.
const diagramSQL = `
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnum = ANY (coalesce(i.indkey::int2[], '{}'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = 'postern' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
	AND c.relname <> 'schema_migrations'
ORDER BY c.relname, a.attnum`

// objectColumns name an object together.
var objectColumns = []string{"source", "account", "object_type", "object_id"}

// links are the columns that name rows of other tables, by column or by table and column.
var links = map[string]string{
	"source": "sources", "run": "runs", "effect": "effects", "schedule": "schedules", "last_event_id": "events",
	"event": "events", "outcomes.event_id": "events", "drifts.event_id": "events", "effects.event_id": "events",
	"event_keys.id": "events", "redactions.requested_by": "events",
}

// colors mark the tables that others name, and the columns that name them.
var colors = map[string]string{"sources": "#c2571a", "events": "#2f6fd0", "objects": "#1f8a4c", "runs": "#8250c4",
	"effects": "#c0307a", "schedules": "#7a7f00"}

// TestSchemaDiagram_tables_isCurrent draws the tables, grouped by the migration that creates them.
func TestSchemaDiagram_tables_isCurrent(t *testing.T) {
	t.Parallel()
	golden.Page(t, schemaDiagram, drawSchema(t, readTables(t)))
}

// readTables reads the tables of the migrated database.
func readTables(t *testing.T) map[string]drawnTable {
	t.Helper()
	type column struct{ name, kind string }
	columns, keys := map[string][]column{}, map[string]map[string]bool{}
	rows, err := testkit.Database(t).Pool.Query(t.Context(), diagramSQL)
	must(t, err)
	for rows.Next() {
		var table string
		var c column
		var key bool
		must(t, rows.Scan(&table, &c.name, &c.kind, &key))
		columns[table] = append(columns[table], c)
		if keys[table] == nil {
			keys[table] = map[string]bool{}
		}
		keys[table][c.name] = key
	}
	must(t, rows.Err())
	tables := map[string]drawnTable{}
	for name, all := range columns {
		inKey, namesObject := 0, true
		for _, column := range objectColumns {
			isKey, ok := keys[name][column]
			namesObject = namesObject && ok
			if isKey {
				inKey++
			}
		}
		namesObject = namesObject && (inKey == 0 || inKey == len(objectColumns))
		d := drawnTable{name: name}
		for _, c := range all {
			target := links[name+"."+c.name]
			if target == "" && c.kind != "text" || c.name == "schedule" {
				target = links[c.name]
			}
			if target == name {
				target = ""
			}
			isKey := keys[name][c.name]
			inObject := namesObject && slices.Contains(objectColumns, c.name)
			switch {
			case inObject && c.name == "source":
				first := drawnRow{columns: strings.Join(objectColumns[:2], ", ") + ",", key: isKey}
				second := drawnRow{strings.Join(objectColumns[2:], ", "), isKey, "objects"}
				if name == "objects" {
					first.target, second.target = "sources", ""
				}
				d.rows = append(d.rows, first, second)
			case inObject:
			case isKey || target != "":
				d.rows = append(d.rows, drawnRow{c.name, isKey, target})
			}
		}
		slices.SortStableFunc(d.rows, func(a, b drawnRow) int {
			switch {
			case a.key == b.key:
				return 0
			case a.key:
				return -1
			}
			return 1
		})
		tables[name] = d
	}
	return tables
}

// tableGroup are the tables of one migration.
type tableGroup struct {
	title  string
	tables []drawnTable
}

var createTable = regexp.MustCompile(`(?m)^CREATE TABLE (?:postern\.)?([a-z_]+) `)

// groupTables groups the tables by the migration that creates them. The title is the first word of
// its comment.
func groupTables(t *testing.T, tables map[string]drawnTable) (groups []tableGroup) {
	t.Helper()
	drawn := 0
	for _, f := range files(t) {
		text, err := migrations.Files.ReadFile(f.Name())
		must(t, err)
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "-- "), ":")
		g := tableGroup{title: title}
		for _, m := range createTable.FindAllStringSubmatch(string(text), -1) {
			if d, ok := tables[m[1]]; ok {
				g.tables = append(g.tables, d)
			}
		}
		if drawn += len(g.tables); len(g.tables) > 0 {
			groups = append(groups, g)
		}
	}
	if drawn != len(tables) {
		t.Errorf("%d of %d tables belong to a migration", drawn, len(tables))
	}
	return groups
}

const diagramStyle = `<style>
text{font-family:DejaVu Sans,Helvetica,Arial,sans-serif;font-size:12px;fill:#1d2433}
.t{font-weight:700}.g{font-size:15px;font-weight:700}.k{font-weight:700}.n{font-size:11px}
.page{fill:#fff}.box{fill:#fff;stroke:#9aa3b2}.head{fill:#eef1f6;stroke:#9aa3b2}
@media (prefers-color-scheme: dark){
text{fill:#e6e9ef}.page{fill:#14171d}.box{fill:#1c2028;stroke:#596273}.head{fill:#2a303b;stroke:#596273}}
</style>
`

// drawSchema returns the picture.
func drawSchema(t *testing.T, tables map[string]drawnTable) string {
	t.Helper()
	var body strings.Builder
	bottoms := [diagramColumns]int{}
	for _, g := range groupTables(t, tables) {
		column := 0
		for i := range bottoms {
			if bottoms[i] < bottoms[column] {
				column = i
			}
		}
		x, y := columnGap+column*(tableWidth+columnGap), bottoms[column]
		fmt.Fprintf(&body, `<text x="%d" y="%d" class="g">%s</text>`+"\n", x, y+24, html.EscapeString(g.title))
		y += titleHeight
		for _, d := range g.tables {
			drawTable(&body, d, x, y)
			y += d.height() + tableGap
		}
		bottoms[column] = y + 6
	}
	width := columnGap + diagramColumns*(tableWidth+columnGap)
	height := slices.Max(bottoms[:]) + titleHeight
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" `+
		`role="img" aria-label="The tables of Postern with their keys">`+"\n"+
		"<!-- Generated from the migrated database: go test ./migrations -update. Do not edit. -->\n"+
		`%[3]s<rect width="%[1]d" height="%[2]d" class="page"/>`+"\n"+`%[4]s<text x="%[5]d" y="%[6]d" class="n">Bold: `+
		`primary key. A square marks the table whose rows the columns name.</text>`+"\n</svg>\n",
		width, height, diagramStyle, body.String(), columnGap, height-14)
}

// drawTable draws a table at a position.
func drawTable(b *strings.Builder, d drawnTable, x, y int) {
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" class="box"/>`, x, y, tableWidth, d.height())
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" class="head"/>`, x, y, tableWidth, headHeight)
	if color := colors[d.name]; color != "" {
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="6" height="%d" rx="3" fill="%s"/>`, x, y, headHeight, color)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" class="t">%s</text>`+"\n", x+14, y+17, d.name)
	for i, row := range d.rows {
		at, class := y+headHeight+(i+1)*rowHeight-3, "n"
		if row.key {
			class = "n k"
		}
		fmt.Fprintf(b, `<text x="%d" y="%d" class="%s">%s</text>`, x+14, at, class, row.columns)
		if row.target != "" {
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="8" height="8" rx="2" fill="%s"/><text x="%d" y="%d" `+
				`text-anchor="end" class="n">%s</text>`, x+tableWidth-16, at-8, colors[row.target],
				x+tableWidth-20, at, row.target)
		}
		b.WriteByte('\n')
	}
}
