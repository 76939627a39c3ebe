package reconcile_test

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// spell is what is wrong with the key of a process from its beginning to its end.
type spell int

const (
	// good: nothing is.
	good spell = iota
	// revoked: no key is known any more.
	revoked
	// blind: it is of another account, where nothing is.
	blind
	// foreign: it is of another account, where much is.
	foreign
)

// What somebody does, as to what may be wrong then.
const (
	// looking is what hints' looks are, and a run over one object.
	looking = iota
	// late is a run over the events or objects of an account of which a webhook has come long ago, and early one before that.
	late
	early
)

// spells are what may be wrong for whoever does something. Before a webhook has come that the API must know of, nobody can tell that the account is another one.
var spells = map[int][]spell{
	looking: {revoked, blind, foreign},
	late:    {revoked, blind, foreign},
	early:   {revoked},
}

// doing is what an order has a process do.
func (l *life) doing(o *reconcile.Order) int {
	switch {
	case o.What == reconcile.Object:
		return looking
	case l.heard(o.Account):
		return late
	}
	return early
}

// heardSQL says whether a webhook of an account has come between two times.
const heardSQL = `SELECT EXISTS (SELECT FROM events WHERE account IN ($1, $2) AND origin = 'webhook'
	AND occurred_at < $3 AND occurred_at > $4)`

// heard says whether a webhook of an account has come so long ago that the API must know its event, and not so long that
// it has forgotten it.
func (l *life) heard(account string) (heard bool) {
	live := strings.TrimSuffix(strings.TrimSuffix(account, "test"), "/")
	l.must(l.db.Pool.QueryRow(context.Background(), heardSQL, live, strings.TrimPrefix(live+"/test", "/"),
		l.Now().Add(-time.Minute), l.Now().Add(time.Minute-l.runner.Settings.Kept)).Scan(&heard))
	return heard
}

// cast lets something be wrong with the key of whoever does a thing, perhaps, until the function is called. Another process that comes between has a key of its own.
func (l *life) cast(doing int, run int64) (over func()) {
	before, of, now := l.spell, l.spelled, good
	if l.chance.IntN(100) < l.wrongKey {
		all := spells[doing]
		if l.fake == nil {
			all = spells[early]
		}
		now = all[l.chance.IntN(len(all))]
		l.counts["wrong key"]++
		if now != revoked && doing == late {
			l.counts["another account"]++
		}
	}
	l.turn(now, run)
	return func() { l.turn(before, of) }
}

// turn makes the key what it is from now on.
func (l *life) turn(to spell, run int64) {
	if l.fake == nil {
		l.revoke(to == revoked)
		l.spell = to
		return
	}
	f := l.account.Faults
	f.Revoked, f.Blind = to == revoked, to == blind
	if l.over {
		f.Expired = 0 // a list that is forgotten time after time ends its run
	}
	l.fake.SetFaults(f)
	l.spelling.Lock()
	defer l.spelling.Unlock()
	if to != l.spell && to != revoked && l.spell != revoked { // another key comes with another configuration
		l.runner.Sources.Forget()
	}
	l.spell, l.spelled = to, run
}

// stranger is the fake of another account. Nothing there has an id that its users choose, by which it might be found in the place of ours (decision 36).
func (l *life) stranger() *stripefake.Fake {
	if l.other == nil {
		o := l.account
		o.Seed, o.Start, o.Name, o.Faults, o.Kinds = l.seed, l.fake.Now(), "Other", stripefake.Faults{}, []string{"customer", "charge"}
		l.other = stripefake.New(l.t, o)
		l.other.Live(30)
	}
	l.other.Advance(l.fake.Now().Sub(l.other.Now()))
	return l.other
}

// sick says what an object's own retrieval comes to for some minutes, nil where it is well: it is kept from the key, or whatever holds it is down.
func (l *life) sick(key string) *reconcile.Response {
	if key == "" || l.over || l.sickness == 0 {
		return nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key + l.Now().Truncate(3*time.Minute).String()))
	n := int(h.Sum32() % 200)
	if n >= 2*l.sickness {
		return nil
	}
	l.counts["sick"]++
	kind := provider.Refused
	if n%2 == 0 {
		kind = provider.Trouble
	}
	return &reconcile.Response{Verdict: provider.Verdict{Kind: kind, Detail: "this one is kept from you"}, Date: l.Now().Truncate(time.Second)}
}

// client is that of the account whose key it is.
func (c *caller) client(ctx context.Context) *reconcile.Client {
	l := c.life
	run, _ := ctx.Value(runKey{}).(int64)
	l.spelling.Lock()
	defer l.spelling.Unlock()
	if l.spell != foreign || l.spelled != run {
		return c.Client
	}
	f := l.stranger()
	if c.stranger == nil {
		c.stranger = l.client((&accountWard{f, l.conditions}).source(l.t).API)
	}
	return c.stranger
}

// tells notes which objects the API tells a run of.
func (c *caller) tells(ctx context.Context, call provider.Call, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	run, _ := ctx.Value(runKey{}).(int64)
	if c.met[run] == nil {
		c.met[run] = map[string]bool{}
	}
	if c.life.fake == nil {
		return
	}
	if _, id, one := strings.Cut(c.life.asks(call).object, " "); one {
		c.met[run][id] = true
		return
	}
	var page struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if !strings.HasSuffix(call.Path, "/events") && json.Unmarshal(body, &page) == nil {
		for _, o := range page.Data {
			c.met[run][o.ID] = true
		}
	}
}

// forget says of how many objects the API has told a run, which has ended.
func (c *caller) forget(run int64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer delete(c.met, run)
	return len(c.met[run])
}

// unready is a provider some of whose events cannot be applied when they come.
type unready struct {
	stripe.Stripe
	life *life

	mu   sync.Mutex
	luck *rand.Rand
}

func (p *unready) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if p.now() {
		return provider.Observation{}, errDown
	}
	return p.Stripe.Observe(src, e)
}

// Snapshot reads what a look has answered.
func (p *unready) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if p.now() {
		return provider.Observation{}, errDown
	}
	return p.Stripe.Snapshot(src, s)
}

func (p *unready) now() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.luck.IntN(100) < p.life.unready
}
