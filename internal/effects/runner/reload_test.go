package runner_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A call that is under way when there are other rules comes to its end, however long it takes.
func TestAReloadCutsNoCall(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, once: true, person_resolves: true, timeout: 60s}`)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.plan(t, 1, 1)
	s := patient
	s.StopWithin = time.Millisecond
	r, _ := b.start(t, s)
	first := <-requests
	r.Replace(b.rules, b.reach)
	b.plan(t, 2, 1)
	second := <-requests // by the new ones, when those before take nothing any more
	second.answer <- `{}`
	select {
	case first.answer <- `{}`:
	case <-time.After(patience):
		t.Fatal("the call was cut")
	}
	if diff := cmp.Diff(map[string]int{"done": 2}, b.settled(t)); diff != "" {
		t.Error(diff)
	}
}

// Effects that end without a call do not wait for each other.
func TestWhatNeedsNoCallIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail/{{ old.to }}", json: {ref: "{{ object.id }}"}}`)
	b.plan(t, 1, 100)
	s := patient
	s.PollEvery = time.Hour
	b.start(t, s)
	if diff := cmp.Diff(map[string]int{"review": 100}, b.settled(t)); diff != "" {
		t.Error(diff)
	}
}

// However often rules are read again, also without a destination for a while, no more calls are under way to it than it takes at once.
func TestReloadsDoNotAddUp(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]bool{"stays": false, "out and in": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, `
      - {name: mail, to: sink, path: "/mail", timeout: 60s}`)
			var underWay, most atomic.Int32
			came, release := make(chan struct{}, 100), make(chan struct{}, 100)
			server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				n := underWay.Add(1)
				defer underWay.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				came <- struct{}{}
				<-release
			}))
			t.Cleanup(server.Close)
			b.reach[0].URL, b.reach[0].Concurrency = server.URL, 2
			const all = 20
			b.plan(t, 1, all)
			r, _ := b.start(t, patient)
			<-came
			<-came
			for range all - 2 {
				if out {
					r.Replace(b.rules, nil)
				}
				r.Replace(b.rules, b.reach)
				for range 20 { // time enough for those of now to take something
					b.states(t)
				}
				release <- struct{}{}
				<-came
			}
			release <- struct{}{}
			release <- struct{}{}
			if diff := cmp.Diff(map[string]int{"done": all}, b.settled(t)); diff != "" || most.Load() != 2 {
				t.Errorf("%d calls at once; %s", most.Load(), diff)
			}
		})
	}
}
