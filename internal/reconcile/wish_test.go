package reconcile_test

import (
	"errors"
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
