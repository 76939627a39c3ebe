package operations_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// historyLog is a log of events of one object.
type historyLog struct {
	*applied.Log
	applier *apply.Applier
	ids     map[string]int64
}

func newHistoryLog(t *testing.T) *historyLog {
	t.Helper()
	l := applied.New(t)
	return &historyLog{Log: l, applier: l.Applier(t, nil), ids: map[string]int64{}}
}

// endpoints are the sources of a process with the log's source.
func (l *historyLog) endpoints(source string) []config.Endpoint {
	return []config.Endpoint{{Provider: sim.Provider{}, Source: &provider.Source{Name: source}}}
}

// add appends an event of object obj at a second, and applies it unless name begins with "-". more
// are further members of the body.
func (l *historyLog) add(t *testing.T, name string, second int64, state, more string) {
	t.Helper()
	body := fmt.Sprintf(`{"id": "x", "type": "thing", "object_id": "obj", "rank": 1, "time": %d, "unit": 1000000, `+
		`"object": %s%s}`, sim.Start+second*1_000_000, state, more)
	l.addBody(t, name, body)
}

func (l *historyLog) addBody(t *testing.T, name, body string) {
	t.Helper()
	ids := l.Append(t, l.Source, []sim.Event{{Object: "obj", Body: []byte(body), ReceivedAt: time.Now().UTC()}})
	l.ids[name] = ids[0]
	applied.Apply(t, l.applier, events.LiveRun, ids)
}

func (l *historyLog) object() operations.ObjectName {
	return operations.ObjectName{Source: applied.SourceName, Type: "thing", ID: "obj"}
}

// items returns all pages of the object's history, with the events' names.
func (l *historyLog) items(t *testing.T, endpoints []config.Endpoint, limit int) (all []operations.HistoryItem,
	pages int) {
	t.Helper()
	p := operations.HistoryParams{ObjectName: l.object()}
	for cursor := ""; ; {
		p.SetPage(limit, cursor)
		page, err := operations.ObjectHistory(t.Context(), l.OperatorPool, endpoints, p)
		testkit.Must(t, err)
		all, pages = append(all, page.Items...), pages+1
		if cursor = page.Next; cursor == "" {
			return all, pages
		}
	}
}

func (l *historyLog) name(id int64) string {
	for name, of := range l.ids {
		if of == id {
			return name
		}
	}
	return fmt.Sprint(id)
}

// line describes an item by what its fields say of other events and of states.
func (l *historyLog) line(i *operations.HistoryItem) string {
	text := l.name(i.ID) + " " + i.Status
	if i.DecidedByEvent != nil {
		text += " by " + l.name(*i.DecidedByEvent)
	}
	if i.Revision != nil {
		text += fmt.Sprint(" revision ", *i.Revision)
	}
	if i.Change != nil {
		text += fmt.Sprintf(" +%d -%d ~%d", i.Change.Added, i.Change.Removed, i.Change.Changed)
	}
	if i.PreviousEvent != nil {
		text += " from " + l.name(*i.PreviousEvent)
	}
	if i.Differs != "" {
		text += " differs in " + i.Differs
	}
	if i.Deleted != nil && *i.Deleted {
		text += " deleted"
	}
	if i.StateOmitted != "" {
		return text + " " + string(i.StateOmitted)
	}
	return text + " " + string(i.State)
}

func (l *historyLog) lines(items []operations.HistoryItem) string {
	var all []string
	for i := range items {
		all = append(all, l.line(&items[i]))
	}
	return strings.Join(all, "\n")
}

func equalLines(t *testing.T, got, want string) {
	t.Helper()
	testkit.Equal(t, "the history", strings.Split(want, "\n"), strings.Split(got, "\n"))
}

// fill adds one event of each kind. The object ends deleted.
func (l *historyLog) fill(t *testing.T) {
	t.Helper()
	l.add(t, "first", 10, `{"a": 1}`, "")
	l.add(t, "second", 20, `{"a": 2, "b": [1]}`, "")
	l.add(t, "late", 15, `{"a": 9}`, "")
	l.add(t, "same", 25, `{"b": [1], "a": 2}`, "")
	l.add(t, "partial", 26, `null`, `, "partial": "only an id"`)
	l.add(t, "tie", 25, `{"a": 3}`, "")
	l.add(t, "broken", 30, `{"a": `, "")
	l.add(t, "third", 40, `{"a": 4}`, "")
	l.add(t, "gone", 50, `null`, `, "deleted": true`)
	refetch := provider.Refetch{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: "obj",
		Body: []byte(`{"unit": 1000000, "object": {"a": 5}}`)}, Date: time.UnixMicro(sim.Start + 60_000_000).UTC()}
	body, err := refetch.Encode()
	testkit.Must(t, err)
	receipts, err := events.Append(t.Context(), l.DB.Pool, []events.Delivery{{Source: l.Source,
		ReceivedAt: time.Now().UTC(), Origin: events.OriginReconcile, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: body, Events: []provider.Event{{Key: "refetch", Type: provider.RefetchType, ObjectType: "thing",
			ObjectID: "obj", Fingerprint: provider.BodyFingerprint(body)}}}})
	testkit.Must(t, err)
	l.ids["refetch"] = receipts[0][0].ID
	applied.Apply(t, l.applier, events.LiveRun, []int64{l.ids["refetch"]})
}

const filledHistory = `refetch applied revision 6 +0 -0 ~1 from gone {"a": 5}
gone applied +0 -0 ~1 from third deleted null
third applied +0 -1 ~1 from second {"a": 4}
tie ambiguous by same +0 -1 ~1 from second {"a": 3}
partial ambiguous by same from second partial
same unchanged {"b": [1], "a": 2}
late stale by second {"a": 9}
second applied +1 -0 ~1 from first {"a": 2, "b": [1]}
first applied {"a": 1}`

func TestObjectHistory_eventsOfEachKind_haveStatesOfConfiguredSource(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	l.fill(t)
	items, _ := l.items(t, l.endpoints(applied.SourceName), 50)
	equalLines(t, l.lines(items), filledHistory)
	for _, limit := range []int{1, 3} {
		some, pages := l.items(t, l.endpoints(applied.SourceName), limit)
		if got := l.lines(some); got != filledHistory || pages < len(items)/limit {
			t.Errorf("%d pages: %s", pages, got)
		}
	}
	for i := range items {
		if i > 0 && items[i].AppliedAt.After(items[i-1].AppliedAt.Time) || items[i].StoredAt.IsZero() ||
			items[i].RuleVersion != versioning.RuleVersion || items[i].EventID == "" {
			t.Errorf("%+v", items[i].HistoryEvent)
		}
	}
	// a process without the source has no states
	for name, endpoints := range map[string][]config.Endpoint{"has no configuration": nil,
		"is not in the configuration": l.endpoints("other"), "is not in the configuration of": {}} {
		items, _ := l.items(t, endpoints, 50)
		for i := range items {
			if items[i].StateOmitted != apply.StateNotConfigured ||
				!strings.Contains(items[i].StateOmittedReason, name) || string(items[i].State) != "null" {
				t.Errorf("%s: %+v", name, items[i])
			}
		}
	}
}

// The stored rows of an older rule, the reader of another configuration, and outcomes without their
// events are named as such.
func TestObjectHistory_changedSinceApplied_isSaid(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	l.fill(t)
	l.DB.Exec(t, `UPDATE outcomes SET rule_version = 1, version = jsonb_set(version, '{rank}', '0')
		WHERE event_id = $1`,
		l.ids["third"])
	l.DB.Exec(t, `UPDATE objects SET tied_states = replace(tied_states::text, encode(state_hash, 'hex'),
		encode(sha256('x'), 'hex'))::jsonb, state_hash = sha256('x')`)
	l.DB.Exec(t, `ALTER TABLE events DISABLE TRIGGER ALL`)
	l.DB.Exec(t, `UPDATE events SET body = NULL, headers = '{}' WHERE id = $1`, l.ids["late"])
	l.DB.Exec(t, `DELETE FROM events WHERE id = ANY($1)`, []int64{l.ids["gone"], l.ids["first"]})
	l.DB.Exec(t, `UPDATE events SET body = '{"a":' WHERE id = $1`, l.ids["same"])
	items, _ := l.items(t, l.endpoints(applied.SourceName), 50)
	equalLines(t, l.lines(items), `refetch applied revision 6 from gone differs in state {"a": 5}
gone applied from third dropped
third applied +0 -1 ~1 from second differs in version {"a": 4}
tie ambiguous by same +0 -1 ~1 from second {"a": 3}
partial ambiguous by same from second partial
same unchanged differs in state unreadable
late stale by second redacted
second applied from first {"a": 2, "b": [1]}
first applied dropped`)
	if third := items[2]; !third.Outdated || items[0].Outdated {
		t.Errorf("%+v", third)
	}
	if gone := items[1]; gone.EventType != "" || !gone.ReceivedAt.IsZero() || gone.StoredAt.IsZero() {
		t.Errorf("%+v", gone)
	}
}

func TestDiffHistory_events_listChanges(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	l.fill(t)
	long := strings.Repeat("a", 5000)
	l.add(t, "long", 100, `{"a": 5, "text": "`+long+`x`+long+`"}`, "")
	l.add(t, "longer", 110, `{"a": 5, "text": "`+long+`y`+long+`"}`, "")
	l.add(t, "late again", 105, `{"a": 5}`, "")
	around := strings.Repeat("a", 128)
	for _, c := range []struct{ from, to, want string }{
		{"first", "second", `[{"path":"state.a","before":1,"after":2},{"path":"state.b","before":null,"after":[1]}]`},
		{"second", "late", `[{"path":"state.a","before":2,"after":9},{"path":"state.b","before":[1],"after":null}]`},
		{"", "second", `[{"path":"state.a","before":1,"after":2},{"path":"state.b","before":null,"after":[1]}]`},
		{"", "first", `[{"path":"state","before":null,"after":{"a":1}}]`},
		{"third", "gone", `[{"path":"deleted","before":false,"after":true},` +
			`{"path":"state","before":{"a":4},"after":null}]`},
		{"", "", `[{"path":"state.text","before":"…` + around + `x` + around + `…","after":"…` + around + `y` + around +
			`…","shortened":true}]`},
		{"longer", "", `[]`},
	} {
		d, err := operations.DiffHistory(t.Context(), l.OperatorPool, l.endpoints(applied.SourceName),
			operations.HistoryDiffParams{ObjectName: l.object(), From: l.idText(c.from), To: l.idText(c.to)})
		testkit.Must(t, err)
		got, err := json.Marshal(d.Changes)
		testkit.Must(t, err)
		if string(got) != c.want || d.Truncated || (d.To == nil) != (c.to == "") ||
			(d.From == nil) != (c.to == "first") {
			t.Errorf("%q to %q: %s\nwant %s", c.from, c.to, got, c.want)
		}
	}
	for name, want := range map[string]string{"broken": "not one of", "partial": "only an id", "12345": "not one of"} {
		if id := l.idText(name); id != "" {
			name = id
		}
		_, err := operations.DiffHistory(t.Context(), l.OperatorPool, l.endpoints(applied.SourceName),
			operations.HistoryDiffParams{ObjectName: l.object(), To: name})
		if !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func (l *historyLog) idText(name string) string {
	if id := l.ids[name]; id != 0 {
		return fmt.Sprint(id)
	}
	return ""
}

// The state at a time is that of the event that was applied last until then, whatever its version.
func TestShowObjectAt_times_returnAppliedState(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	l.fill(t)
	items, _ := l.items(t, l.endpoints(applied.SourceName), 50)
	at := func(at time.Time) (string, error) {
		o, err := operations.ShowObjectAt(t.Context(), l.OperatorPool, l.endpoints(applied.SourceName),
			operations.ObjectAtParams{ObjectName: l.object(), Time: operations.At(at)})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(l.name(o.Event.ID), " ", string(o.State), " ", o.Ambiguous), nil
	}
	want := map[string]string{"first": `first {"a": 1} false`, "second": `second {"a": 2, "b": [1]} false`,
		"late": `second {"a": 2, "b": [1]} false`, "partial": `second {"a": 2, "b": [1]} true`,
		"third": `third {"a": 4} false`, "gone": `gone null false`, "refetch": `refetch {"a": 5} false`}
	for i := range items {
		name := l.name(items[i].ID)
		if want[name] == "" {
			continue
		}
		got, err := at(items[i].AppliedAt.Add(time.Microsecond))
		if err != nil || got != want[name] {
			t.Errorf("after %s: %s, %v, want %s", name, got, err, want[name])
		}
	}
	if got, err := at(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)); err != nil || got != want["refetch"] {
		t.Errorf("in the far future: %s, %v", got, err)
	}
	for _, before := range []time.Time{items[len(items)-1].AppliedAt.Add(-time.Second), time.UnixMicro(-1)} {
		if got, err := at(before); !errors.Is(err, events.ErrNotFound) {
			t.Errorf("before all events: %s, %v", got, err)
		}
	}
}

// In the order of occurrence, late events count as if they had arrived in time.
func TestShowObjectAt_orderOfOccurrence_countsLateEvents(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	l.fill(t)
	l.DB.Exec(t, `SET session_replication_role = replica; UPDATE events e SET
		occurred_at = to_timestamp((o.version->>'at')::bigint / 1e6) FROM outcomes o
		WHERE o.event_id = e.id AND o.version IS NOT NULL; RESET session_replication_role`)
	for second, want := range map[int64]string{10: `first {"a": 1}`, 15: `late {"a": 9}`,
		20: `second {"a": 2, "b": [1]}`, 49: `third {"a": 4}`, 50: `gone null`} {
		o, err := operations.ShowObjectAt(t.Context(), l.OperatorPool, l.endpoints(applied.SourceName),
			operations.ObjectAtParams{ObjectName: l.object(), Order: operations.ByOccurrence,
				Time: operations.At(time.UnixMicro(sim.Start + second*1_000_000))})
		testkit.Must(t, err)
		if got := fmt.Sprint(l.name(o.Event.ID), " ", string(o.State)); got != want || !o.Late || !o.Complete {
			t.Errorf("second %d: %s, want %s: %+v", second, got, want, o)
		}
	}
	// nothing is late now, so both orders lead to the last event
	o, err := operations.ShowObjectAt(t.Context(), l.OperatorPool, nil, operations.ObjectAtParams{
		ObjectName: l.object(), Order: operations.ByOccurrence, Time: operations.At(apply.EndOfTime)})
	if err != nil || l.name(o.Event.ID) != "refetch" || o.Late {
		t.Errorf("in the far future: %+v %v", o, err)
	}
	_, err = operations.ShowObjectAt(t.Context(), l.OperatorPool, nil, operations.ObjectAtParams{
		ObjectName: l.object(), Order: "x", Time: operations.At(apply.EndOfTime)})
	if !errors.Is(err, events.ErrInvalid) {
		t.Errorf("an unknown order: %v", err)
	}
}

func TestObjectHistory_wrongNames_areErrors(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	account := "none"
	for name, p := range map[string]operations.ObjectName{"source": {Source: "x", Type: "thing", ID: "obj"},
		"object":  {Source: applied.SourceName, Type: "thing", ID: "none"},
		"account": {Source: applied.SourceName, Type: "thing", ID: "obj", Account: &account}} {
		_, err := operations.ObjectHistory(t.Context(), l.OperatorPool, nil, operations.HistoryParams{ObjectName: p})
		if !errors.Is(err, events.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := operations.HistoryParams{ObjectName: l.object()}
	p.SetPage(5, events.MakeCursor("x"))
	if _, err := operations.ObjectHistory(t.Context(), l.OperatorPool, nil, p); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a cursor of another list: %v", err)
	}
}

// A page ends early if its states or bodies are large, and each page contains at least one event.
func TestObjectHistory_largeStates_endPage(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	large := strings.Repeat("x", 3<<20)
	for i := range int64(7) {
		l.add(t, fmt.Sprint("e", i), i, fmt.Sprintf(`{"n": %d, "text": %q}`, i, large), "")
	}
	l.add(t, "huge", 100, `{"text": "`+strings.Repeat("x", 9<<20)+`"}`, "")
	items, pages := l.items(t, l.endpoints(applied.SourceName), 50)
	if len(items) != 8 || pages != 5 {
		t.Errorf("%d events on %d pages", len(items), pages)
	}
	for i := range items {
		if items[i].StateOmitted != "" || len(items[i].State) < 3<<20 || items[i].Change != nil {
			t.Errorf("%s: %d bytes, %v", l.name(items[i].ID), len(items[i].State), items[i].Change)
		}
	}
	_, err := operations.DiffHistory(t.Context(), l.OperatorPool, l.endpoints(applied.SourceName),
		operations.HistoryDiffParams{ObjectName: l.object()})
	var tooMany *operations.TooManyError
	if !errors.As(err, &tooMany) {
		t.Errorf("a comparison of large states: %v", err)
	}
}

// Bodies of attackers are read as any other.
func TestObjectHistory_hostileBodies_areRead(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	deep := strings.Repeat("[", 900) + strings.Repeat("]", 900)
	l.add(t, "deep", 10, `{"a": `+deep+`}`, "")
	l.add(t, "too deep", 20, `{"a": `+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`, "")
	l.add(t, "not UTF-8", 30, "{\"a\": \"\xff\"}", "")
	l.add(t, "NUL", 40, `{"a": "\u0000\ud800", "b": 1e999, "a<script>": 1}`, "")
	items, _ := l.items(t, l.endpoints(applied.SourceName), 50)
	equalLines(t, l.lines(items), `NUL applied revision 2 +2 -0 ~1 from deep {"a":"`+"\uFFFD\uFFFD"+
		`","b":"1e999","a<script>":1}
deep applied {"a": `+deep+`}`)
	if _, err := json.Marshal(items); err != nil {
		t.Error(err)
	}
}

// A page of an object with many outcomes reads only about as many outcomes as it shows, and no
// table from beginning to end.
func TestObjectHistory_manyOutcomes_areReadByIndex(t *testing.T) {
	t.Parallel()
	l := newHistoryLog(t)
	key := versioning.Key{Source: l.Source, Type: "thing", ID: "obj"}
	l.DB.Exec(t, `
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, version,
			decided_by, attempts, at, rule_version)
		SELECT (e.ms + g) << 20, r, $1, CASE g % 20 WHEN 0 THEN $2::bigint ELSE g END, '', 'thing', 'obj',
			CASE g % 40 WHEN 0 THEN 'applied' ELSE 'stale' END, 'because',
			jsonb_build_object('final', false, 'at', g, 'seen', 0, 'rank', 1),
			jsonb_build_object('final', false, 'at', g - 20, 'seen', 0, 'rank', 1), 1, event_time((e.ms + g) << 20), 3
		FROM generate_series(1, 40000) g, generate_series(0, 1) r, (SELECT clock_ms() - 50000 AS ms) e`, l.Source,
		key.Hash())
	l.DB.WithEachPlan(t, func(name string, tx pgx.Tx) {
		began := outcomeReads(t, tx)
		outcomes, next, err := apply.ObjectOutcomes(t.Context(), tx, key, 1<<62, false, 50)
		testkit.Must(t, err)
		if len(outcomes) != 50 || next != outcomes[49].EventID {
			t.Errorf("%s: %d outcomes, next %d", name, len(outcomes), next)
		}
		before, _, err := apply.ObjectOutcomes(t.Context(), tx, key, next, true, 1)
		testkit.Must(t, err)
		if len(before) != 1 || before[0].EventID >= next {
			t.Errorf("%s: %v", name, before)
		}
		page := outcomeReads(t, tx)
		deciders, err := apply.FindDeciders(t.Context(), tx, key, outcomes)
		testkit.Must(t, err)
		if len(deciders) != 25 {
			t.Errorf("%s: %d deciders", name, len(deciders))
		}
		decided := outcomeReads(t, tx)
		// To read all is cheaper for a large part of a small table.
		testkit.ExecSQL(t, tx, `SET LOCAL enable_seqscan = off`)
		applied, err := apply.AppliedBefore(t.Context(), tx, key, apply.EndOfTime, 1<<62, 2)
		testkit.Must(t, err)
		if len(applied) != 2 || applied[0].EventID != outcomes[0].EventID {
			t.Errorf("%s: %v", name, applied)
		}
		atTime := outcomeReads(t, tx)
		_, complete, err := apply.OccurredBefore(t.Context(), tx, key, time.UnixMilli(1))
		testkit.Must(t, err)
		if complete {
			t.Errorf("%s: all events that arrived later were searched", name)
		}
		for what, read := range map[string][3]int{"a page": {began, page, 700}, "deciders": {page, decided, 2200},
			"the state at a time": {decided, atTime, 8100}, "late events": {atTime, outcomeReads(t, tx), 2200}} {
			if n := read[1] - read[0]; n == 0 || n > read[2] {
				t.Errorf("%s: %s reads %d outcomes", name, what, n)
			}
		}
	})
}

// outcomeReads returns how many outcomes this session has read. Reading all counts as a million.
func outcomeReads(t *testing.T, tx pgx.Tx) (n int) {
	t.Helper()
	testkit.Must(t, tx.QueryRow(t.Context(), `SELECT seq_scan * 1000000 + idx_tup_fetch FROM pg_stat_xact_user_tables
		WHERE relname = 'outcomes'`).Scan(&n))
	return n
}
