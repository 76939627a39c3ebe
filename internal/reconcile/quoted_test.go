package reconcile_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// An API that sends the key back has it shown nowhere: not by a run, not by what a sweep leaves, wherever an error would cut what it quotes.
func TestNoQuoteShowsTheKey(t *testing.T) {
	t.Parallel()
	b := newDescribed(t)
	b.fake.Set("a", "x", time.Second)
	b.deliver(t, b.fake.Events())
	b.fake.Set("a", "y", time.Second)
	b.fake.Advance(time.Minute)
	source, before := *b.runner.Sources.All()[b.Source], 0
	source.Caller = meddling{source.Caller, func(c provider.Call) *reconcile.Response {
		if !strings.HasPrefix(c.Path, "/things/") {
			return nil
		}
		body := fmt.Appendf(nil, `{"data":{"thing":{"key":%q,"changed":"2026-01-01T00:00:00Z"}}}`, strings.Repeat("x", before)+restfake.Key)
		return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Status: 200, Date: time.Now().Truncate(time.Second), Body: body}
	}}
	b.runner.Sources.Replace(&source)
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
	for _, before = range []int{0, 30, 60, 63} {
		id, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Object, Type: "thing", ID: "a"}, Who: "test"})
		if err != nil {
			t.Fatal(err)
		}
		r := b.Until(t, id, func(r *runs.Run) bool { return r.Troubles > 0 || r.Status.Final() })
		if !strings.Contains(r.Detail, "the API answered one whose key is") || strings.Contains(r.Detail, restfake.Key[:3]) {
			t.Errorf("behind %d characters, %s: %s", before, r.Status, r.Detail)
		}
		if err := runs.Change(t.Context(), b.Operator, id, runs.Cancelled); err != nil && !r.Status.Final() {
			t.Fatal(err)
		}
	}
	r := b.ask(t, reconcile.Order{What: reconcile.Objects, Type: "thing"})
	page, err := reconcile.Differences(t.Context(), b.Operator, r.Run, "", "left", "", 10)
	if err != nil || len(page.Items) != 1 || !strings.Contains(page.Items[0].Reason, "the API answered one whose key is") || strings.Contains(page.Items[0].Reason, restfake.Key[:3]) {
		t.Errorf("%s: %s; left %+v (%v)", r.Status, r.Detail, page.Items, err)
	}
}

// talkative cannot read a page, and says all of it.
type talkative struct{ sim.Provider }

func (talkative) ObjectPage(_ *provider.Source, _ *provider.API, _, _, _ string, _ http.Header, body []byte) ([]provider.Listed, string, error) {
	return nil, "", fmt.Errorf("no page: %s", body)
}

// What a reader says of an answer is rid of the key, whatever that is.
func TestNoReaderShowsTheKey(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) {
		s.Reader, s.API = talkative{}, &provider.API{Concurrency: 2, Key: provider.Secret{Name: "api.key", Value: []byte(key)}}
	}))
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" {
			return b.found("you sent " + key), nil
		}
		return nil, nil
	}
	b.carry(t, r)
	run := b.order(t, reconcile.Order{What: reconcile.Objects, Type: "thing"})
	if got := b.Until(t, run, func(r *runs.Run) bool { return r.Troubles > 0 || r.Status.Final() }); !strings.Contains(got.Detail, "no page: you sent [hidden]") {
		t.Errorf("%s: %s", got.Status, got.Detail)
	}
}
