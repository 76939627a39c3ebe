package runner_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/standardwebhooks"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// A change that is forwarded is signed, as whoever takes Standard Webhooks proves, by one id at each attempt, and has its numbers as they came.
func TestForward(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: tell, to: sink, forward: true, retry: {first: 10ms}}`)
	const secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	b.reach[0].Sign = []byte("01234567890123456789012345678901")
	b.sink.Honours = false
	first := true
	b.sink.Next = func(*http.Request) sink.Fault {
		defer func() { first = false }()
		if first {
			return sink.ActsFails
		}
		return sink.Fine
	}
	b.enter(t, b.rules.Intents(&effects.Transition{Source: "shop", Number: 1, Type: "invoice", ID: "in_1", New: []byte(`{"total": 820982911946154508.10}`), Event: effects.Event{ID: 7, Key: "evt_7", ReceivedAt: time.Unix(1_700_000_000, 0)}}))
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	calls := b.sink.Calls()
	if len(calls) != 2 || calls[0].Header.Get("Webhook-Id") != calls[1].Header.Get("Webhook-Id") || calls[0].Body != calls[1].Body || calls[0].Path != "/" {
		t.Fatalf("%+v", calls)
	}
	for _, c := range calls {
		src := &provider.Source{Name: "x", Secrets: []provider.Secret{{Name: "s", Value: []byte(secret)}}}
		if _, err := (standardwebhooks.New()).Verify(src, &provider.Delivery{Body: []byte(c.Body), Header: c.Header, ReceivedAt: time.Now()}); err != nil {
			t.Error(err)
		}
		if data := c.JSON(t); data["type"] != "invoice.changed" || data["timestamp"] != "2023-11-14T22:13:20Z" || !strings.Contains(c.Body, `820982911946154508.10`) {
			t.Errorf("%s", c.Body)
		}
	}
}
