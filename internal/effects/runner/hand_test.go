package runner_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// looks is how often something must be so, one look after the other.
const looks = 20

// While what came of calls waits to be recorded further calls are made, but not without bound: what is in hand is in doubt if the process dies.
func TestWhatIsInHandIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: tell, to: sink, path: "/tell", json: {ref: "{{ object.id }}"}, timeout: 60s}]`)
	b.reach[0].Concurrency = 2
	hold, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hold.Rollback(context.WithoutCancel(t.Context())) }() // where it is not over by then
	b.sink.Next = func() func(*http.Request) sink.Fault {
		first := sync.OnceFunc(func() {
			if _, err := hold.Exec(t.Context(), `SELECT FROM effects WHERE state = 'running' FOR UPDATE`); err != nil {
				t.Error(err)
			}
		})
		return func(*http.Request) sink.Fault { first(); return sink.Fine }
	}()
	b.plan(t, 1, 20)
	patient := quick
	patient.Margin = time.Minute // so long it tries to record
	b.runWith(t, "a", b.pool, patient)
	so := 0
	testkit.Eventually(t, patience, func() error {
		n := len(b.sink.Calls())
		if n > 6 {
			t.Fatalf("%d effects are in hand", n)
		}
		if n < 6 {
			return fmt.Errorf("%d calls beside what waits to be recorded", n)
		}
		if so++; so < looks {
			return fmt.Errorf("looked %d times", so)
		}
		return nil
	})
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.settled(t); got["done"] != 20 || len(b.sink.Calls()) != 20 {
		t.Errorf("%v, %d calls", got, len(b.sink.Calls()))
	}
}
