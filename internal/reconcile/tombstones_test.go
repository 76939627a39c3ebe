package reconcile_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// unseen are living objects that all owe a look, and that the key may no longer see.
func unseen(t *testing.T, seed uint64) *world {
	t.Helper()
	b := newWorld(t, seed, sim.Options{Objects: 30, Changes: 1, Contents: 4, Unit: 1, Gap: 2_000_000, Own: true})
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, `UPDATE objects SET look_after = 1`)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if strings.HasPrefix(c.Path, "/things/") {
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Missing}, Date: b.api.now.Truncate(time.Second)}, nil
		}
		return nil, nil
	}
	return b
}

// Many processes' looks of hints delete no more in an hour than a sweep may without asking; what is left says what to do, and goes on by the hour or by a person's wish.
func TestHintsDeleteFew(t *testing.T) {
	t.Parallel()
	b := unseen(t, 211)
	b.looking(t, 3)
	left := func(n int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			dead := one[int](t, b, `SELECT count(*) FROM objects WHERE deleted`)
			said := one[int](t, b, `SELECT count(*) FROM hints WHERE taken_by = '' AND due > clock_now() + interval '50 minutes' AND error LIKE '%more than 1 \%%--type thing --full asks a person%'`)
			if said != n || dead+said != 30 {
				return fmt.Errorf("%d are deleted, %d are left", dead, said)
			}
			return nil
		})
	}
	testkit.Eventually(t, time.Minute, func() error {
		if n := one[int](t, b, `SELECT (SELECT count(*) FROM hints WHERE due < clock_now() + interval '50 minutes') + (SELECT count(*) FROM objects o WHERE look_after <> 0 AND NOT EXISTS (SELECT FROM hints h WHERE h.object_id = o.object_id))`); n > 0 {
			return fmt.Errorf("%d have not been looked at", n)
		}
		return nil
	})
	dead := one[int](t, b, `SELECT count(*) FROM objects WHERE deleted`)
	if dead != 20 {
		t.Fatalf("%d are deleted", dead)
	}
	left(30 - dead)
	if n := one[int](t, b, countLooks); n != dead {
		t.Errorf("%d looks were appended, and %d objects are deleted", n, dead)
	}
	id := one[string](t, b, `SELECT object_id FROM hints ORDER BY object_id LIMIT 1`)
	if _, err := reconcile.Wish(t.Context(), b.Operator, versioning.Key{Source: b.Source, Type: "thing", ID: id}, "me", "it is gone indeed"); err != nil {
		t.Fatal(err)
	}
	left(30 - dead - 1)
	b.DB.Exec(t, `UPDATE tombstones SET at = at - interval '61 minutes'`)
	b.DB.Exec(t, `UPDATE hints SET due = clock_now()`) // an hour later
	testkit.Eventually(t, time.Minute, func() error {
		if n := one[int](t, b, `SELECT count(*) FROM objects WHERE NOT deleted`); n > 0 {
			return fmt.Errorf("%d live", n)
		}
		return nil
	})
	if n := one[int](t, b, `SELECT count(*) FROM tombstones WHERE at < clock_now() - interval '1 hour'`); n != 0 {
		t.Errorf("%d are still noted from the hour before", n)
	}
}

// Where so many objects live that it is a hundredth of them at most, nobody is asked.
func TestHintsDeleteAHundredth(t *testing.T) {
	t.Parallel()
	b := unseen(t, 212)
	b.DB.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, jsonb_build_object('object_id', 'more_' || n, 'look_after', 0))).* FROM objects o, generate_series(1, 3000) n WHERE o.object_id = 'obj_6'`)
	b.looking(t, 2)
	testkit.Eventually(t, time.Minute, func() error {
		if n := one[int](t, b, `SELECT count(*) FROM objects WHERE deleted`); n != 30 {
			return errors.New(fmt.Sprint(n, " are deleted"))
		}
		return nil
	})
}
