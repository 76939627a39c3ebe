package processor_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

func (b *testBundle) save(t *testing.T, o *versioning.Object) error {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := versioning.Save(t.Context(), tx, versioning.Mirror, []*versioning.Object{o}); err != nil {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		return err
	}
	return tx.Commit(t.Context())
}

// Of two that read the same row only the first may write it, also where its write left version and revision as they were: what
// only the tie set or look_after knows would be lost.
func TestSaveRefusesARowReadBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, write := range map[string]func(*versioning.Object){
		"joined the tie set": func(o *versioning.Object) {
			o.Set = append(o.Set, versioning.Member{State: o.State, Lo: o.Lo - 1, Hi: o.Hi + 1, Look: true})
		},
		"raised look_after": func(o *versioning.Object) { o.LookAfter += 1_000_000 },
		"changed nothing":   func(*versioning.Object) {},
	} {
		t.Run(name, func(t *testing.T) {
			e := thing(len(name), name)
			id := "obj_" + name
			if err := b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
				t.Fatal(err)
			}
			first, second := b.object(t, id), b.object(t, id)
			write(first)
			if err := b.save(t, first); err != nil {
				t.Fatal(err)
			}
			if now := b.object(t, id); now.Revision != second.Revision || now.Version != second.Version {
				t.Fatalf("the first write moved the row from %d %+v to %d %+v", second.Revision, second.Version, now.Revision, now.Version)
			}
			second.Ambiguous = true
			if err := b.save(t, second); err == nil {
				t.Error("the second was written over what it had not read")
			}
			if err := b.save(t, b.object(t, id)); err != nil {
				t.Errorf("whoever reads the row as it is may write: %v", err)
			}
		})
	}
}

// Of two that both found no row only the first may make it.
func TestSaveRefusesASecondFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.object(t, "obj_new"), b.object(t, "obj_new")
	first.LookAfter, second.LookAfter = 1, 2
	if err := b.save(t, first); err != nil {
		t.Fatal(err)
	}
	if err := b.save(t, second); err == nil {
		t.Error("the second made the row again")
	}
}
