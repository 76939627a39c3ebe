package reconcile_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// If an API returns the key, no run and no difference shows it, wherever an error cuts the quoted
// text.
func TestReconcile_keyInResponse_isMaskedEverywhere(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t)
	b.Fake.Set("a", "x", time.Second)
	b.Deliver(t, b.Fake.Events())
	b.Fake.Set("a", "y", time.Second)
	b.Fake.Advance(time.Minute)
	source, before := *b.Runner.Sources.All()[b.Source], 0
	source.Caller = reconciled.InterceptingCaller{Caller: source.Caller,
		Intercept: func(c provider.Call) *providerapi.Response {
			if !strings.HasPrefix(c.Path, "/things/") {
				return nil
			}
			body := fmt.Appendf(nil, `{"data":{"thing":{"key":%q,"changed":"2026-01-01T00:00:00Z"}}}`,
				strings.Repeat("x", before)+restfake.Key)
			return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Status: 200,
				Date: time.Now().Truncate(time.Second), Body: body}
		}}
	b.Runner.Sources.Replace(&source)
	b.StartReconciler(t, b.Runner)
	for _, before = range []int{0, 30, 60, 63} {
		id := b.StartRun(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a"})
		r := b.WaitForRun(t, id, reconciled.EndedOrDeferred)
		if !strings.Contains(r.Detail, "the API returned one whose key is") ||
			strings.Contains(r.Detail, restfake.Key[:3]) {
			t.Errorf("after %d characters, %s: %s", before, r.Status, r.Detail)
		}
		if err := runs.ChangeStatus(t.Context(), b.OperatorPool, id, runs.Cancelled); err != nil && !r.Status.Ended() {
			t.Fatal(err)
		}
	}
	r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
	left := b.Unrepaired(t, r.ID)
	if len(left) != 1 || !strings.Contains(left[0].Reason, "the API returned one whose key is") ||
		strings.Contains(left[0].Reason, restfake.Key[:3]) {
		t.Errorf("%s: %s; unrepaired %+v", r.Status, r.Detail, left)
	}
}

// quotingReader cannot read a page and quotes it in the error.
type quotingReader struct{ sim.Provider }

func (quotingReader) ObjectPage(_ *provider.Source, _ *provider.API, _, _, _ string, _ http.Header,
	body []byte) ([]provider.ListedObject, string, error) {
	return nil, "", fmt.Errorf("no page: %s", body)
}

// The key is masked in errors of a reader.
func TestReconcile_readerErrorWithKey_isMasked(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	r := b.Runner()
	r.Sources.Replace(b.SourceWith(func(s *providerapi.Source) {
		s.Reader, s.API = quotingReader{},
			&provider.API{Concurrency: 2, Key: provider.Secret{Name: "api.key", Value: []byte(reconciled.APIKey)}}
	}))
	b.API.RespondTo(b.FoundResponse("you sent "+reconciled.APIKey), "/list")
	b.StartReconciler(t, r)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
	if got := b.WaitForRun(t, run, reconciled.EndedOrDeferred); !strings.Contains(got.Detail,
		"no page: you sent [hidden]") {
		t.Errorf("%s: %s", got.Status, got.Detail)
	}
}
