package providertest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
)

// CheckSound checks what must hold for any verified delivery, whatever its body and headers. Its
// events are identified, or its account is rejected, with the same result twice and with names that
// can be stored. Each observation has one of the three shapes, or the event is dead.
func CheckSound(t *testing.T, p provider.Provider, src *provider.Source, d *provider.Delivery) {
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
		checkEvent(t, events[i])
		o, err := p.Observe(src, stored)
		checkObservation(t, events[i], o, err)
	}
}

func checkEvent(t *testing.T, e provider.Event) {
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

func checkObservation(t *testing.T, e provider.Event, o provider.Observation, err error) {
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
			t.Fatalf("ignored, with further values: %+v", o)
		}
		return
	case o.Partial != "":
		if o.State != nil || o.Before != nil || o.Deleted {
			t.Fatalf("partial, with further values: %+v", o)
		}
	case o.State == nil && !o.Deleted, !o.HasAt && !o.Final, o.Final && !o.Deleted:
		t.Fatalf("an incomplete whole state: %+v", o)
	}
	if !named || o.Unit < 1 || o.Account != e.Account || o.ObjectType != e.ObjectType || o.ObjectID != e.ObjectID {
		t.Fatalf("the object's name differs from the event's: %+v, %+v", o, e)
	}
}
