package redaction_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/redaction"
)

// A preview counts the objects that there are: not one that was misspelt, nor one of which only outcomes tell.
func TestPreviewCountsWhatThereIs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.event(t, "hers", 1, email)
	for _, c := range []struct {
		order           redaction.Order
		events, objects int64
	}{
		{redaction.Order{Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "hers"}}}, 1, 1},
		{redaction.Order{Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "Hers"}}}, 0, 0},
		{redaction.Order{Objects: []redaction.Object{{Source: b.source, Account: "another", Type: "thing", ID: "hers"}}}, 0, 0},
		{redaction.Order{Events: []int64{id}}, 1, 1},
		{b.byEmail(t, email), 1, 1},
	} {
		if p, err := redaction.Look(t.Context(), b.operator, &c.order, nil); err != nil || p.Events != c.events || p.Objects != c.objects {
			t.Errorf("%+v: %+v, %v", c.order, p, err)
		}
	}
	b.exec(t, `DELETE FROM objects`)
	if p, err := redaction.Look(t.Context(), b.operator, &redaction.Order{Events: []int64{id}}, nil); err != nil || p.Events != 1 || p.Objects != 0 {
		t.Errorf("an object of which only an outcome tells: %+v, %v", p, err)
	}
}
