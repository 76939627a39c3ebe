package reconcile_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// asked has one process carry out a run with an API and returns the run, once it has ended or asks for a person.
func (b *shop) asked(t *testing.T, api *provider.API, o reconcile.Order) *runs.Run {
	t.Helper()
	o.Source = b.Source
	stop := b.carry(t, b.runner(t, api, asIs))
	defer stop()
	run := b.order(t, o)
	return b.Until(t, run, halted)
}

// renamed is a fake whose ids are no other fake's.
func renamed(f *stripefake.Fake) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.NewReplacer("Fake", "None", "Else", "Fake").Replace(r.URL.Path)
		answer := httptest.NewRecorder()
		f.ServeHTTP(answer, r)
		w.Header().Set("Date", answer.Header().Get("Date"))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(bytes.ReplaceAll(answer.Body.Bytes(), []byte("Fake"), []byte("Else")))
	})
}

// elsewhere is the API as a key of another account has it, which has so many objects of a type.
func (b *shop) elsewhere(t *testing.T, objectType string, n int) http.Handler {
	t.Helper()
	other := stripefake.New(t, stripefake.Options{Seed: 22, Start: b.fake.Now()})
	for range n {
		other.Create("", objectType, nil)
	}
	other.Advance(2 * time.Minute)
	return renamed(other)
}

// A key of another account, whether that is empty or not, and one of the other mode end a run before anything is appended, buried or proven. With the right key it goes on.
func TestAKeyOfAnotherAccount(t *testing.T) {
	t.Parallel()
	const theirs, mode = "its key is of another account", "the key reads the other"
	for name, c := range map[string]struct {
		objects int
		live    bool
		other   stripefake.Options
		fill    int
		want    string
	}{
		"empty, over 5 objects":      {objects: 5, want: theirs},
		"another, over 30 objects":   {objects: 30, fill: 50, want: theirs},
		"of test mode, over 5 alive": {objects: 5, live: true, want: mode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShop(t, "", stripefake.Options{Seed: 21, Live: c.live})
			for range c.objects {
				b.fake.Create("", "customer", nil)
			}
			b.deliver(t, every)
			b.fake.Create("", "customer", nil) // which nobody tells us of
			b.fake.Advance(2 * time.Minute)
			foreign := b.api(serve(t, b.elsewhere(t, "customer", c.fill).ServeHTTP))
			if c.live { // the same account, whose test mode looks empty
				foreign = b.api(b.fake.URL)
			}
			for _, o := range []reconcile.Order{{What: reconcile.Events}, {What: reconcile.Events, DryRun: true}, {What: reconcile.Objects}, {What: reconcile.Objects, Type: "customer", DryRun: true},
				{What: reconcile.Object, Type: "customer", ID: "cus_Fake000001"}} {
				if c.live && o.What == reconcile.Object {
					continue // which is asked for in the key's mode alone
				}
				failed(t, b.asked(t, foreign, o), c.want)
			}
			b.unchanged(t)
			if c.live {
				return
			}
			for _, o := range []reconcile.Order{{What: reconcile.Objects, Type: "customer"}, {What: reconcile.Events}} {
				has(t, b.asked(t, b.api(b.fake.URL), o), counts{reconcile.Missing: 1})
			}
		})
	}
}

// The events of the mode that the key does not read, however many of them came last, tell nothing of it; one of its own mode shows it.
func TestTheOtherModesEventsAreNoWitnesses(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 23})
	b.fake.Live(20)
	b.deliver(t, every)
	for i := range 50 {
		b.webhook(t, fmt.Sprintf(`{"id":"evt_live_%d","object":"event","type":"balance.available","created":%d,"livemode":true,"data":{"object":{"object":"balance"}}}`, i, b.fake.Now().Unix()))
	}
	b.fake.Advance(2 * time.Minute)
	isDone(t, b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Events}))
}

// An event that has just happened may not be listed yet, and one that is nearly too old no more: that the API does not know it shows nothing, and an object shows the key.
func TestAnEventThatIsTooYoungOrTooOldIsHeldAgainstNoKey(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 235, alive(2))
	last := b.api.h.Events[len(b.api.h.Events)-1]
	b.deliver(t, []sim.Event{last})
	b.api.on(b.missing(), "/event/*")
	r := b.runner()
	r.Settings.Settle, r.Settings.Overlap = 30*time.Second, time.Minute
	b.carry(t, r)
	for _, c := range []struct {
		age  time.Duration
		want runs.Status
	}{{10 * time.Second, runs.Done}, {40 * time.Second, runs.Failed}, {r.Settings.Kept - 30*time.Second, runs.Done}} {
		b.api.set(b.happened(t).Add(c.age))
		if r := b.ended(t, b.order(t, reconcile.Order{What: reconcile.Objects})); r.Status != c.want {
			t.Errorf("of an event of %s ago: %s: %s", c.age, r.Status, r.Detail)
		}
	}
}

// Four events that the API does not know, for whatever reason, do not end a run whose key the fifth shows; five do.
func TestFiveUnknownEventsEndARun(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 237, alive(4))
	unknown := map[string]bool{}
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if key, ok := strings.CutPrefix(c.Path, "/event/"); ok && unknown[key] {
			return b.missing(), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	newest := b.DB.Rows(t, `SELECT event_id FROM events ORDER BY id DESC LIMIT 6`)
	for n, want := range map[int]runs.Status{4: runs.Done, 5: runs.Failed} {
		b.api.mu.Lock()
		clear(unknown)
		for _, key := range newest[:n] {
			unknown[key] = true
		}
		b.api.mu.Unlock()
		if r := b.ask(t, reconcile.Order{What: reconcile.Events}); r.Status != want {
			t.Errorf("with %d unknown events: %s: %s", n, r.Status, r.Detail)
		}
	}
}

// happened is when the only event of the log happened.
func (b *world) happened(t *testing.T) (at time.Time) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(occurred_at, received_at) FROM events WHERE origin = 'webhook'`).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// A source whose webhooks have brought nothing yet shows nothing of its key: what is listed is taken.
func TestAFreshSourceIsFilled(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 24})
	b.fake.Live(20)
	b.fake.Advance(2 * time.Minute)
	has(t, b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Events}), counts{reconcile.Missing: 20})
}

// silent is a provider that lists objects and no events.
type silent struct{ provider.ObjectLister }

// silently has the world's runs and looks go to an API that lists no events. It is of another account: its list has other objects, so many, and none of ours is there but those that the choice names.
func (b *world) silently(t *testing.T, others int, there func(id string) bool) *reconcile.Runner {
	t.Helper()
	r := b.runnerOf(func(s *reconcile.Source) { s.Reader = silent{sim.Provider{}} })
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		id, named := strings.CutPrefix(c.Path, "/things/")
		switch {
		case c.Path == "/list":
			list := make([]string, others)
			for i := range list {
				list[i] = fmt.Sprintf(`{"id":"theirs_%d","answer":%s}`, i, b.api.h.Answer("obj_1", sim.Look{Began: b.api.now.UnixMicro()}).Body)
			}
			return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[%s]}`, strings.Join(list, ","))), nil
		case named && !there(id):
			return b.missing(), nil
		case strings.HasPrefix(id, "theirs"):
			return b.answer(provider.Found, b.api.h.Answer("obj_1", sim.Look{Began: b.api.now.UnixMicro()}).Body), nil
		}
		return nil, nil
	}
	return r
}

func nothing(string) bool { return false }

// alive are histories of so many objects that all live.
func alive(n int) sim.Options {
	return sim.Options{Objects: n, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 2_000_000}
}

// Where no event shows whose the key is, objects do: a sweep to whose key none of them is known appends, buries and proves nothing before a person has said that they are gone.
func TestASweepOfAnotherAccount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ objects, others int }{{1, 0}, {5, 50}, {30, 0}} {
		t.Run(fmt.Sprintf("%d objects, %d others", c.objects, c.others), func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 230, alive(c.objects))
			b.carry(t, b.silently(t, c.others, nothing))
			run := b.order(t, reconcile.Order{What: reconcile.Objects})
			r := b.Until(t, run, halted)
			if r.Status != runs.Proposed || !strings.Contains(r.Detail, fmt.Sprintf("the API knows none of the %d objects", min(3, c.objects))) {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); len(dead) > 0 || b.looks(t) != 0 || !b.proven(t).IsZero() {
				t.Errorf("%d looks, proven until %s, deleted are %q", b.looks(t), b.proven(t), dead)
			}
			b.approve(t, run, "they are gone")
			if c.objects > 20 { // which asks once more, since they are many
				if r := b.Until(t, run, func(r *runs.Run) bool {
					return r.Status.Final() || strings.Contains(r.Detail, "30 of 80 living") || strings.Contains(r.Detail, "30 of 30 living")
				}); r.Status != runs.Proposed {
					t.Errorf("%s: %s", r.Status, r.Detail)
				}
				return
			}
			counted(t, b.ended(t, run), nonzero(counts{reconcile.Seen: int64(c.objects + c.others), reconcile.Missing: int64(c.others), reconcile.Ghosts: int64(c.objects),
				reconcile.Mended: int64(c.objects + c.others)}))
		})
	}
}

// nonzero leaves out what is 0, and how far the clock of a fake is from the database's.
func nonzero(counts map[string]int64) map[string]int64 {
	delete(counts, reconcile.SkewSeconds)
	for name, n := range counts {
		if n == 0 {
			delete(counts, name)
		}
	}
	return counts
}

// A mirror that has nothing has nothing to say against a key, and one object that is found shows it: then a few that are gone need nobody.
func TestOneObjectShowsTheKey(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 231, alive(5))
	b.carry(t, b.silently(t, 3, func(id string) bool { return id == "obj_4" }))
	counted(t, b.sweep(t, reconcile.Order{}), counts{reconcile.Seen: 3, reconcile.Missing: 3, reconcile.Mended: 3})
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, `UPDATE objects SET last_event_id = last_event_id + 1000 WHERE object_id LIKE 'theirs%'`) // they are only of a look, and the newest
	if r := b.sweep(t, reconcile.Order{}); r.Counts[reconcile.Ghosts] != 4 || b.proven(t).IsZero() {
		t.Errorf("%s %v, proven until %s", r.Status, r.Counts, b.proven(t))
	}
	if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); len(dead) != 4 {
		t.Errorf("deleted are %q", dead)
	}
}

// What a sweep with a wrong key has brought into a fresh mirror does not show that key once webhooks have told of other objects.
func TestForeignObjectsAreNoWitnesses(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 232, alive(2)) // so few that theirs are among those to ask for
	b.carry(t, b.silently(t, 3, func(id string) bool { return strings.HasPrefix(id, "theirs") }))
	b.sweep(t, reconcile.Order{})
	b.deliver(t, b.api.h.Events)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	if r := b.Until(t, run, halted); r.Status != runs.Proposed {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// A look that finds nothing is no tombstone where the key is known to see nothing else either, unless a person has asked for it.
func TestALookOfAnotherAccount(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 233, eventTime)
	id := b.owing(t)
	r := b.silently(t, 0, nothing)
	looksOf(t, r, "one")
	b.met(t, "so thing "+id+", which it says is missing too, is not believed to be")
	is(t, b, 0, countLooks)
	b.wish(t, "thing", id, "me", "it is gone")
	testkit.Eventually(t, time.Minute, func() error {
		if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted AND object_id = $1`, id); len(dead) != 1 {
			return fmt.Errorf("deleted are %q", dead)
		}
		return nil
	})
}

// An object that is missing is none of those that must be there for it to be believed: where the mirror has no other, nothing speaks against the key.
func TestTheOnlyObjectMayBeMissing(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 236, alive(1))
	b.DB.Exec(t, `UPDATE objects SET look_after = 1`)
	looksOf(t, b.silently(t, 0, nothing), "one")
	testkit.Eventually(t, time.Minute, func() error {
		if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); len(dead) != 1 {
			return fmt.Errorf("deleted are %q; hints say %q", dead, b.DB.Rows(t, `SELECT error FROM hints`))
		}
		return nil
	})
}

// Each account has a balance, and any may have a plan called gold: that a key finds them does not show that it is ours.
func TestWhatEachAccountHasIsNoWitness(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 25})
	for range 5 {
		b.fake.Create("", "customer", nil)
	}
	b.deliver(t, every)
	id := b.webhook(t, fmt.Sprintf(`{"id":"evt_balance","object":"event","type":"balance.available","created":%d,"livemode":false,
		"data":{"object":{"object":"balance","livemode":false,"available":[]}}}`, b.fake.Now().Unix()))
	applied.Apply(t, b.Processor(t, nil), 0, []int64{id})
	b.fake.Advance(40 * 24 * time.Hour) // no event is listed any more
	foreign := b.api(serve(t, b.elsewhere(t, "customer", 3).ServeHTTP))
	for _, what := range []string{reconcile.Events, reconcile.Objects} {
		if r := b.asked(t, foreign, reconcile.Order{What: what}); r.Status != runs.Proposed || !strings.Contains(r.Detail, "the API knows none of the 3 objects") {
			t.Errorf("%s with another account's key: %s %v: %s", what, r.Status, r.Counts, r.Detail)
		}
	}
	none(t, b.DB.Rows(t, `SELECT event_id FROM events WHERE origin <> 'webhook'`))
	isDone(t, b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Events}))
}
