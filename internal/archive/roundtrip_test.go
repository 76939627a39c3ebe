package archive_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
)

// What is exported from one instance and imported into an empty one, in another order even, makes the same log and the same objects. A second import
// changes nothing.
func TestImportedLogMakesTheSameObjects(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	ds := from.deliveries(t, seed(t))
	total := 0
	for len(ds) > 0 {
		n := min(len(ds), 37)
		total += len(from.append(t, ds[:n]...))
		ds = ds[n:]
	}
	text := from.export(t, events.Filter{})
	if lines := bytes.Count(text, []byte("\n")); lines != len(from.log(t)) {
		t.Errorf("%d lines of %d events", lines, len(from.log(t)))
	}
	stored := int64(len(from.log(t)))
	to.wantImport(t, to.order(), "all.ndjson", text, archive.Imported{Read: stored, New: stored})
	to.wantImport(t, to.order(), "all.ndjson", text, archive.Imported{Read: stored, Duplicate: stored})
	to.register(t)
	if diff := cmp.Diff(from.log(t), to.log(t)); diff != "" {
		t.Errorf("the logs differ:\n%s", diff)
	}
	if origins := to.rows(t, `SELECT DISTINCT origin FROM events`); len(origins) != 1 || origins[0] != events.OriginImport {
		t.Errorf("origins %v", origins)
	}
	from.apply(t)
	to.apply(t)
	a, b := from.objects(t), to.objects(t)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("the objects differ:\n%s", diff)
	}
	if ambiguous := strings.Count(strings.Join(a, ""), `"ambiguous": true`); len(a) < 60 || ambiguous == 0 {
		t.Errorf("%d objects, %d of them ambiguous: too little to tell", len(a), ambiguous)
	}
	// What was imported can be exported, and is the same again.
	third := setup(t)
	third.wantImport(t, third.order(), "again.ndjson", to.export(t, events.Filter{}), archive.Imported{Read: stored, New: stored})
	if diff := cmp.Diff(from.log(t), third.log(t)); diff != "" {
		t.Errorf("the third log differs:\n%s", diff)
	}
}

// A delivery's events keep their places, whichever of them are chosen, and its body is stored once where they are together.
func TestEventsOfADelivery(t *testing.T) {
	t.Parallel()
	from := setup(t)
	from.register(t)
	from.append(t, from.simple("one", "a"))
	from.append(t, from.simple("many", "a", "b", "c", "d", "e")) // a is a duplicate in the second place of holder
	from.append(t, from.simple("last", "z"))
	for _, c := range []struct {
		filter events.Filter
		keep   string
		bodies int
		want   []string
	}{
		{events.Filter{}, "", 3, []string{"a 0 one", "b 1 many", "c 2 many", "d 3 many", "e 4 many", "z 0 last"}},
		{events.Filter{Key: "d"}, "", 1, []string{"d 3 many"}},
		{events.Filter{}, `"event_id":"c"`, 1, []string{"c 2 many"}},
		{events.Filter{}, `"delivery_index":`, 3, []string{"a 0 one", "b 1 many", "c 2 many", "d 3 many", "e 4 many", "z 0 last"}},
	} {
		to := setup(t)
		var text []byte
		for line := range bytes.Lines(from.export(t, c.filter)) {
			if bytes.Contains(line, []byte(c.keep)) {
				text = append(text, line...)
			}
		}
		n := int64(len(c.want))
		to.wantImport(t, to.order(), "some.ndjson", text, archive.Imported{Read: n, New: n})
		got := to.rows(t, `SELECT e.event_id || ' ' || e.delivery_index || ' ' || convert_from(coalesce(e.body, h.body), 'UTF8') FROM events e JOIN events h ON h.id = e.delivery_id ORDER BY 1`)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v %s: %s", c.filter, c.keep, diff)
		}
		if bodies := len(to.rows(t, `SELECT 'x' FROM events WHERE body IS NOT NULL`)); bodies != c.bodies {
			t.Errorf("%+v: %d bodies stored, want %d", c.filter, bodies, c.bodies)
		}
	}
}

// What the provider's API was asked for is read in another way than a webhook, so its origin stays.
func TestLooksStayLooks(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	for _, origin := range []string{events.OriginWebhook, events.OriginReconcile, events.OriginHint, events.OriginImport} {
		d := from.simple(origin, origin)
		d.Origin = origin
		from.append(t, d)
	}
	to.wantImport(t, to.order(), "all.ndjson", from.export(t, events.Filter{}), archive.Imported{Read: 4, New: 4})
	want := []string{"hint hint hint", "import import import", "reconcile reconcile reconcile", "webhook import webhook"}
	if diff := cmp.Diff(want, to.rows(t, `SELECT event_id || ' ' || origin || ' ' || (verification->'imported'->>'origin') FROM events ORDER BY 1`)); diff != "" {
		t.Error(diff)
	}
}
