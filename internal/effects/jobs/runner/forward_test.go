package runner_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/standardwebhooks"
	"github.com/postern-gateway/postern/internal/testkit"
)

const forwardSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

// setupForward configures a forward of invoices to a handler.
func setupForward(t *testing.T, receiver http.HandlerFunc) *fixture {
	t.Helper()
	b := setup(t, twoSteps)
	b.configure(t, `
forward:
  app: {to: %q, types: [shop/invoice], secret: {value: %s}, allow: [127.0.0.1]}
`, serve(t, receiver), forwardSecret)
	return b
}

// forward plans the forward of a revision of an object.
func (b *fixture) forward(t *testing.T, object string, revision int64) {
	t.Helper()
	all, err := b.rules.Forward(&effects.Revision{Source: "shop", Number: 1, Type: "invoice", ID: object,
		Revision: revision, Batch: revision, Message: fmt.Appendf(nil,
			`{"object_id": %q, "revision": %d, "state": {"total": 820982911946154508.10}}`, object, revision)})
	must(t, err)
	b.insert(t, all)
}

// forwardedCall is a message that a receiver got.
type forwardedCall struct {
	header http.Header
	body   []byte
	Object string `json:"object_id"`
	// Revision is that of the object, State keeps the spelling of its numbers.
	Revision int64
	State    struct{ Total json.Number }
}

// wantSigned checks the signature of a message.
func wantSigned(t *testing.T, header http.Header, body []byte) {
	t.Helper()
	src := &provider.Source{Name: "x", Secrets: []provider.Secret{{Name: "s", Value: []byte(forwardSecret)}}}
	if _, err := (standardwebhooks.New()).Verify(src, &provider.Delivery{Body: body, Header: header,
		ReceivedAt: time.Now()}); err != nil {
		t.Error(err)
	}
}

// The changes of an object arrive in order, also if the first attempt is rejected while newer ones
// are planned. Other objects do not wait. A newer change replaces one that was not sent.
func TestRun_forwards_keepOrderOfEachObject(t *testing.T) {
	t.Parallel()
	calls, planned := make(chan forwardedCall, 10), make(chan struct{})
	var attempts atomic.Int64 // of object a
	b := setupForward(t, func(w http.ResponseWriter, r *http.Request) {
		c := forwardedCall{header: r.Header}
		var err error
		if c.body, err = io.ReadAll(r.Body); err != nil || json.Unmarshal(c.body, &c) != nil {
			t.Errorf("read %q: %v", c.body, err)
		}
		calls <- c
		if c.Object == "a" && attempts.Add(1) == 1 {
			<-planned
			w.WriteHeader(http.StatusUnauthorized) // as if the secret was not correct yet
		}
	})
	receive := func() forwardedCall {
		t.Helper()
		select {
		case c := <-calls:
			return c
		case <-time.After(patience):
			t.Fatal("nothing arrives")
			return forwardedCall{}
		}
	}
	b.forward(t, "a", 1)
	b.run(t, "one", b.pool)
	b.run(t, "two", b.pool)
	all := []forwardedCall{receive()}
	b.forward(t, "a", 2)
	b.forward(t, "a", 3)
	b.forward(t, "b", 1)
	all = append(all, receive()) // while the first is in progress
	close(planned)
	all = append(all, receive(), receive())
	if got := b.waitIdle(t); got["done"] != 3 || got["superseded"] != 1 {
		t.Errorf("effects %v", got)
	}
	var got []string
	ids := map[string]string{}
	for _, c := range all {
		got = append(got, fmt.Sprint(c.Object, c.Revision, " ", c.State.Total))
		wantSigned(t, c.header, c.body)
		ids[fmt.Sprint(c.Object, c.Revision)] += c.header.Get("Webhook-Id") + " "
	}
	const total = " 820982911946154508.10"
	testkit.Equal(t, "calls", []string{"a1" + total, "b1" + total, "a1" + total, "a3" + total}, got)
	if id := all[0].header.Get("Webhook-Id"); ids["a1"] != id+" "+id+" " || ids["a3"] == ids["b1"] {
		t.Errorf("webhook ids %v", ids)
	}
}

// Plain http reaches only the addresses that the forward allows, not public ones.
func TestRun_forwardOverHTTP_callsOnlyAllowedAddresses(t *testing.T) {
	t.Parallel()
	b := setupForward(t, func(http.ResponseWriter, *http.Request) { t.Error("called") })
	b.destinations[0].Allow = nil
	b.forward(t, "a", 1)
	b.run(t, "one", b.pool)
	b.wantIdle(t, "needs_review", 1)
	const want = "is not in the list that the destination allows: without TLS it may not be called"
	if reason := b.db.QueryStrings(t, `SELECT reason FROM effects`)[0]; !strings.HasSuffix(reason, want) {
		t.Errorf("reason %q", reason)
	}
}
