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
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// If an API returns the key, no run and no difference shows it, wherever an error cuts the quoted
// text.
func TestReconcile_keyInResponse_isMaskedEverywhere(t *testing.T) {
	t.Parallel()
	b := newRESTEnv(t)
	b.fake.Set("a", "x", time.Second)
	b.deliver(t, b.fake.Events())
	b.fake.Set("a", "y", time.Second)
	b.fake.Advance(time.Minute)
	source, before := *b.runner.Sources.All()[b.Source], 0
	source.Caller = interceptingCaller{source.Caller, func(c provider.Call) *providerapi.Response {
		if !strings.HasPrefix(c.Path, "/things/") {
			return nil
		}
		body := fmt.Appendf(nil, `{"data":{"thing":{"key":%q,"changed":"2026-01-01T00:00:00Z"}}}`,
			strings.Repeat("x", before)+restfake.Key)
		return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Status: 200,
			Date: time.Now().Truncate(time.Second), Body: body}
	}}
	b.runner.Sources.Replace(&source)
	b.startReconciler(t, b.runner)
	for _, before = range []int{0, 30, 60, 63} {
		id := b.startRun(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a"})
		r := b.WaitForRun(t, id, endedOrDeferred)
		if !strings.Contains(r.Detail, "the API returned one whose key is") ||
			strings.Contains(r.Detail, restfake.Key[:3]) {
			t.Errorf("after %d characters, %s: %s", before, r.Status, r.Detail)
		}
		if err := runs.ChangeStatus(t.Context(), b.OperatorPool, id, runs.Cancelled); err != nil && !r.Status.Ended() {
			t.Fatal(err)
		}
	}
	r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
	left := b.unrepaired(t, r.ID)
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
	b := newMirroredEnv(t, 220, livingObjects)
	r := b.runner()
	r.Sources.Replace(b.sourceWith(func(s *providerapi.Source) {
		s.Reader, s.API = quotingReader{},
			&provider.API{Concurrency: 2, Key: provider.Secret{Name: "api.key", Value: []byte(apiKey)}}
	}))
	b.api.respondTo(b.foundResponse("you sent "+apiKey), "/list")
	b.startReconciler(t, r)
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
	if got := b.WaitForRun(t, run, endedOrDeferred); !strings.Contains(got.Detail, "no page: you sent [hidden]") {
		t.Errorf("%s: %s", got.Status, got.Detail)
	}
}
