package providertest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
)

// Sound checks what must hold for any delivery whose sender is proven, whatever its body and headers: it is named or its
// account refused, twice the same, by names that can be stored; and what it says has one of the three shapes, or it is dead.
func Sound(t *testing.T, p provider.Provider, src *provider.Source, d *provider.Delivery) {
	t.Helper()
	events, err := p.Identify(src, d)
	if err != nil {
		if rejection := new(provider.Rejection); !errors.As(err, &rejection) {
			t.Fatalf("identify: %v, want a rejection", err)
		}
		return
	}
	if len(events) == 0 {
		t.Fatal("identify: no events")
	}
	again, _ := p.Identify(src, d)
	if diff := cmp.Diff(events, again); diff != "" {
		t.Fatalf("identified twice: %s", diff)
	}
	for i, stored := range (Suite{}).stored(events, d) {
		soundEvent(t, events[i])
		o, err := p.Observe(src, stored)
		soundObservation(t, events[i], o, err)
	}
}

func soundEvent(t *testing.T, e provider.Event) {
	t.Helper()
	if !provider.ValidName(e.Key) || !provider.ValidName(e.Type) {
		t.Fatalf("key %q, type %q", e.Key, e.Type)
	}
	for _, name := range []string{e.Account, e.ObjectType, e.ObjectID, e.APIVersion} {
		if name != "" && !provider.ValidName(name) {
			t.Fatalf("%q cannot be stored: %+v", name, e)
		}
	}
	if (e.ObjectType == "") != (e.ObjectID == "") || e.OccurredAt.Year() > 9999 {
		t.Fatalf("event %+v", e)
	}
}

func soundObservation(t *testing.T, e provider.Event, o provider.Observation, err error) {
	t.Helper()
	if err != nil {
		if dead := new(provider.Dead); !errors.As(err, &dead) || dead.Reason == "" {
			t.Fatalf("observe: %v, want dead with a reason", err)
		}
		return
	}
	named := provider.ValidName(o.ObjectType) && provider.ValidName(o.ObjectID)
	switch {
	case o.Ignored != "":
		if named || o.Partial != "" || o.State != nil || o.HasAt {
			t.Fatalf("ignored, and more: %+v", o)
		}
		return
	case o.Partial != "":
		if o.State != nil || o.Before != nil || o.Deleted {
			t.Fatalf("partial, and more: %+v", o)
		}
	case o.State == nil && !o.Deleted, !o.HasAt && !o.Final, o.Final && !o.Deleted:
		t.Fatalf("a whole state that lacks something: %+v", o)
	}
	if !named || o.Unit < 1 || o.Account != e.Account || o.ObjectType != e.ObjectType || o.ObjectID != e.ObjectID {
		t.Fatalf("object of another name than the event's: %+v, %+v", o, e)
	}
}
