package reconcile_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Many wishes are one look, and the log says whose it was. A wish that comes while a look is under way is granted by another one.
func TestWishesAreGranted(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 90, eventTime)
	operator := b.DB.Role(t, "operator")
	key := versioning.Key{Source: b.Source, Type: "thing", ID: "obj_1"}
	wish := func(reason string) {
		t.Helper()
		if h, err := reconcile.Wish(t.Context(), operator, key, "ada@office", reason); err != nil || h.ObjectID != "obj_1" || h.WantedBy != "ada@office" || h.Reason != reason {
			t.Errorf("%+v, %v", h, err)
		}
	}
	calls := 0
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if strings.HasPrefix(c.Path, "/things/") {
			if calls++; calls == 1 {
				wish("a new doubt")
			} else {
				b.api.now = b.api.now.Add(time.Minute) // what is answered now is another look
			}
		}
		return nil, nil
	}
	for range 3 {
		wish("a doubt")
	}
	b.looking(t, 2)
	b.settled(t)
	var whose []string
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT array_agg((verification->>'wanted_by') || ': ' || (verification->>'reason') ORDER BY id) FROM events WHERE event_type = 'postern.look'`).Scan(&whose); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(whose, ", "); got != "ada@office: a doubt, ada@office: a new doubt" || b.api.made("/things/") != 2 {
		t.Errorf("%d calls, looks of %q", b.api.made("/things/"), got)
	}
}

// Each wish that is granted is an event of its own with who and why, also where a look has seen the same before, and where its object has come into doubt meanwhile. Where nobody has the object,
// nothing is appended, and the process's log says whose wish it was.
func TestEachWishIsKept(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 90, eventTime)
	b.deliver(t, b.api.h.Events)
	var log lockedBuffer
	operator, run := b.DB.Role(t, "operator"), b.runner()
	run.Sources.All()[b.Source].API.Rate = 20
	pass := (&reconcile.Looks{Runner: run, ID: "one", Logger: slog.New(slog.NewTextHandler(&log, nil))}).Passes(run.Sources.All()[b.Source])
	wish := func(id, who, why string) {
		t.Helper()
		if _, err := reconcile.Wish(t.Context(), operator, versioning.Key{Source: b.Source, Type: "thing", ID: id}, who, why); err != nil {
			t.Fatal(err)
		}
	}
	read := func(want bool) {
		t.Helper()
		if got, err := reconcile.Read(t.Context(), operator, b.Source); err != nil || got != want {
			t.Errorf("the API is read: %t (%v), want %t", got, err, want)
		}
	}
	read(false)
	if _, err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	read(true) // though the API was not called yet
	if got := b.DB.Rows(t, `SELECT tokens::text FROM budgets`); len(got) != 1 || got[0] != "2" {
		t.Errorf("calls that may come at once are %q, want a tenth of the rate", got)
	}
	passes := func() {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			b.DB.Exec(t, `UPDATE hints SET due = now()`)
			if _, err := pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.DB.Rows(t, `SELECT count(*)::text FROM hints`); n[0] != "0" {
				return fmt.Errorf("%s hints are left", n[0])
			}
			return nil
		})
	}
	passes()
	var want []string
	for _, who := range []string{"ada", "bob", "bob"} { // the provider's clock stands still: they all see the same
		wish("obj_1", who, "a doubt of "+who+"'s")
		passes()
		want = append(want, who+": a doubt of "+who+"'s")
	}
	wish("obj_2", "eve", "a doubt of eve's")
	b.DB.Exec(t, `UPDATE hints SET gaps = '[]'`)
	b.DB.Exec(t, `UPDATE objects SET look_after = 1 WHERE object_id = 'obj_2'`)
	passes()
	want = append(want, "eve: a doubt of eve's")
	const whoseSQL = `SELECT verification->>'wanted_by' || ': ' || (verification->>'reason') FROM events WHERE event_type = 'postern.look' AND verification ? 'wanted_by' ORDER BY id`
	if got := b.DB.Rows(t, whoseSQL); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	b.api.meets(func(c provider.Call) (*reconcile.Response, error) {
		if c.Path != "/things/obj_x" {
			return nil, nil
		}
		return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Missing}, Date: b.api.now.Truncate(time.Second)}, nil
	})
	wish("obj_x", "ivy", "a name on a note")
	passes()
	if got := b.DB.Rows(t, whoseSQL); len(got) != len(want) || log.count(`who=ivy reason="a name on a note"`) != 1 {
		t.Errorf("%q, and the log says %s", got, log.String())
	}
}

// A hint can be taken back as long as it is there.
func TestForget(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	operator := db.Role(t, "operator")
	if _, err := db.Role(t, "gateway").Exec(t.Context(), `INSERT INTO sources (name, provider) VALUES ('shop', 'sim')`); err != nil {
		t.Fatal(err)
	}
	key := versioning.Key{Source: 1, Type: "thing", ID: "obj_1"}
	if _, err := reconcile.Wish(t.Context(), operator, key, "ada", "a doubt"); err != nil {
		t.Fatal(err)
	}
	if h, err := reconcile.Forget(t.Context(), operator, key); err != nil || h.Source != "shop" || h.Reason != "a doubt" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := reconcile.Forget(t.Context(), operator, key); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("%v", err)
	}
}
