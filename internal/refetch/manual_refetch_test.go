package refetch_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/versioning"
)

// manualRefetchesSQL lists the actors of manual refetches, with their reasons.
const manualRefetchesSQL = `SELECT verification->>'requested_by' || ': ' || (verification->>'reason') FROM events
	WHERE event_type = 'postern.refetch' AND verification ? 'requested_by' ORDER BY id`

// Many manual requests for an object make one refetch, and the log names its actor. A request that
// arrives during a refetch is served by another one.
func TestManualRefetch_severalRequests_areOneRefetch(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 90, reconciled.EventTimeOptions)
	operator := b.OperatorPool
	key := versioning.Key{Source: b.Source, Type: "thing", ID: "obj_1"}
	request := func(reason string) {
		t.Helper()
		if h, err := refetch.Add(t.Context(), operator, key, "ada@office", reason); err != nil ||
			h.ObjectID != "obj_1" || h.RequestedBy != "ada@office" || h.Reason != reason {
			t.Errorf("%+v, %v", h, err)
		}
	}
	calls := 0
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if strings.HasPrefix(c.Path, "/things/") {
			if calls++; calls == 1 {
				request("a new question")
			} else {
				b.API.Time = b.API.Time.Add(time.Minute) // the next response is another refetch
			}
		}
		return nil, nil
	}
	for range 3 {
		request("a question")
	}
	b.StartRefetchers(t, 2)
	b.WaitForRefetches(t)
	b.WantRows(t, manualRefetchesSQL, "ada@office: a question", "ada@office: a new question")
	b.API.WantCalls(t, "/things/", 2)
}

// Each manual refetch is its own event with actor and reason. This also holds if a refetch has seen
// the same before, and if the object needs a refetch meanwhile. If the object does not exist,
// nothing is appended, and the process's log names the actor.
func TestManualRefetch_eachRequest_isInTheLog(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 90, reconciled.EventTimeOptions)
	var log reconciled.LockedBuffer
	operator, run := b.OperatorPool, b.Runner()
	run.Sources.All()[b.Source].API.Rate = 20
	pass := (&refetch.Refetcher{Resources: run.Resources, ID: "one",
		Logger: slog.New(slog.NewTextHandler(&log, nil))}).ForSource(run.Sources.All()[b.Source]).Pass
	request := func(id, who, why string) { b.RequestRefetch(t, "thing", id, who, why) }
	read := func(want bool) {
		t.Helper()
		if got, err := providerapi.ProcessorReadsAPI(t.Context(), operator, b.Source); err != nil || got != want {
			t.Errorf("the API is read: %t (%v), want %t", got, err, want)
		}
	}
	read(false)
	if _, err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	read(true) // before the first call of the API
	b.WantRows(t, `SELECT tokens::text FROM rate_budgets`, "2")
	passes := func() {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			b.DB.Exec(t, `UPDATE refetch_requests SET due = now()`)
			if _, err := pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.DB.QueryStrings(t, `SELECT count(*)::text FROM refetch_requests`); n[0] != "0" {
				return fmt.Errorf("%s requests are left", n[0])
			}
			return nil
		})
	}
	passes()
	var want []string
	for _, who := range []string{"ada", "bob", "bob"} { // the provider's clock stands still: all refetches see the same
		request("obj_1", who, "a question of "+who+"'s")
		passes()
		want = append(want, who+": a question of "+who+"'s")
	}
	request("obj_2", "eve", "a question of eve's")
	b.DB.Exec(t, `UPDATE refetch_requests SET missed_changes = '[]'`)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1 WHERE object_id = 'obj_2'`)
	passes()
	want = append(want, "eve: a question of eve's")
	b.WantRows(t, manualRefetchesSQL, want...)
	b.API.RespondTo(b.MissingResponse(), "/things/obj_x")
	request("obj_x", "ivy", "a name on a note")
	passes()
	if got := b.DB.QueryStrings(t, manualRefetchesSQL); len(got) != len(want) ||
		log.Count(`actor=ivy reason="a name on a note"`) != 1 {
		t.Errorf("%q, and the log says %s", got, log.String())
	}
}
