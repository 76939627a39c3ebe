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
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// keyState is the state of a process's API key. It stays the same until the process ends.
type keyState int

const (
	// keyGood is a key without a fault.
	keyGood keyState = iota
	// keyRevoked is a key that the API rejects.
	keyRevoked
	// keyOfEmptyAccount is a key of another account without any objects.
	keyOfEmptyAccount
	// keyOfOtherAccount is a key of another account with many objects.
	keyOfOtherAccount
)

// The kinds of action decide which key states are possible.
const (
	// actionRefetch is a refetch, or a run for one object.
	actionRefetch = iota
	// actionCheckedRun is a run for an account with a webhook that is old enough to verify the key.
	// actionUncheckedRun is a run for an account without one.
	actionCheckedRun
	actionUncheckedRun
)

// possibleKeys are the possible key states of each action. Without a webhook whose event the API
// must know, the account check cannot detect a key of another account.
var possibleKeys = map[int][]keyState{
	actionRefetch:      {keyRevoked, keyOfEmptyAccount, keyOfOtherAccount},
	actionCheckedRun:   {keyRevoked, keyOfEmptyAccount, keyOfOtherAccount},
	actionUncheckedRun: {keyRevoked},
}

// actionOf returns the kind of action of a request.
func (l *simulation) actionOf(o *reconcile.Params) int {
	switch {
	case o.Scope == reconcile.Object:
		return actionRefetch
	case l.webhookReceived(o.Account):
		return actionCheckedRun
	}
	return actionUncheckedRun
}

// webhookReceivedSQL reports whether a webhook of an account occurred between two times.
const webhookReceivedSQL = `SELECT EXISTS (SELECT FROM events WHERE account IN ($1, $2) AND origin = 'webhook'
	AND occurred_at < $3 AND occurred_at > $4)`

// webhookReceived reports whether an account has a webhook that is old enough for the API to know
// its event, and young enough that the API still lists it.
func (l *simulation) webhookReceived(account string) (received bool) {
	live := strings.TrimSuffix(strings.TrimSuffix(account, "test"), "/")
	l.must(l.db.Pool.QueryRow(context.Background(), webhookReceivedSQL, live, strings.TrimPrefix(live+"/test", "/"),
		l.Now().Add(-time.Minute), l.Now().Add(time.Minute-l.runner.Limits.EventRetention)).Scan(&received))
	return received
}

// withRandomKey may set a faulty key for an action. The returned function restores the key. A
// process that starts in between has its own key.
func (l *simulation) withRandomKey(action int, run int64) (restore func()) {
	before, of, now := l.key, l.keyRun, keyGood
	if l.chance.IntN(100) < l.wrongKeyPercent {
		all := possibleKeys[action]
		if l.fake == nil {
			all = possibleKeys[actionUncheckedRun]
		}
		now = all[l.chance.IntN(len(all))]
		l.counts["wrong key"]++
		if now != keyRevoked && action == actionCheckedRun {
			l.counts["another account"]++
		}
	}
	l.setKey(now, run)
	return func() { l.setKey(before, of) }
}

// setKey sets the state of the key.
func (l *simulation) setKey(to keyState, run int64) {
	if l.fake == nil {
		l.revoke(to == keyRevoked)
		l.key = to
		return
	}
	f := l.stripe.Faults
	f.Revoked, f.SeesNothing = to == keyRevoked, to == keyOfEmptyAccount
	if l.providerStopped {
		f.CursorExpired = 0 // a run ends if the API forgets its cursor again and again
	}
	l.fake.SetFaults(f)
	l.keyLock.Lock()
	defer l.keyLock.Unlock()
	if to != l.key { // a new configuration comes with another key
		l.runner.ResetAccountChecks()
	}
	l.key, l.keyRun = to, run
}

// otherAccountFake is the fake of another account. It has no objects with ids that users choose:
// the check could find such an object instead of one of the mirror.
func (l *simulation) otherAccountFake() *stripefake.Fake {
	if l.otherAccount == nil {
		o := l.stripe
		o.Seed, o.Start, o.Name, o.Faults, o.ObjectTypes = l.seed, l.fake.Now(), "Other", stripefake.Faults{},
			[]string{"customer", "charge"}
		l.otherAccount = stripefake.New(l.t, o)
		l.otherAccount.RunSteps(30)
	}
	l.otherAccount.Advance(l.fake.Now().Sub(l.otherAccount.Now()))
	return l.otherAccount
}

// unreadableResponse returns the response to the retrieval of an object that is unreadable for some
// minutes: the key may not read it, or its backend is down. It returns nil for a readable object.
func (l *simulation) unreadableResponse(key string) *providerapi.Response {
	if key == "" || l.providerStopped || l.unreadablePercent == 0 {
		return nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key + l.Now().Truncate(3*time.Minute).String()))
	n := int(h.Sum32() % 200)
	if n >= 2*l.unreadablePercent {
		return nil
	}
	l.counts["object unreadable"]++
	kind := provider.Rejected
	if n%2 == 0 {
		kind = provider.Failure
	}
	return &providerapi.Response{Verdict: provider.Verdict{Kind: kind, Detail: "this object is unreadable"},
		Date: l.Now().Truncate(time.Second)}
}

// clientOf returns the client of the account that the current key belongs to.
func (c *simulationCaller) clientOf(ctx context.Context) *providerapi.Client {
	l := c.sim
	run, _ := ctx.Value(runKey{}).(int64)
	l.keyLock.Lock()
	defer l.keyLock.Unlock()
	if l.key != keyOfOtherAccount || l.keyRun != run {
		return c.Client
	}
	f := l.otherAccountFake()
	if c.otherClient == nil {
		c.otherClient = l.newAPIClient(stripeAPI(f, l.stripe))
	}
	return c.otherClient
}

// recordSeen records the objects that the API has returned to a run.
func (c *simulationCaller) recordSeen(ctx context.Context, call provider.Call, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	run, _ := ctx.Value(runKey{}).(int64)
	if c.seenByRun[run] == nil {
		c.seenByRun[run] = map[string]bool{}
	}
	if c.sim.fake == nil {
		return
	}
	if _, id, one := strings.Cut(c.sim.classify(call).object, " "); one {
		c.seenByRun[run][id] = true
		return
	}
	var page struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if !strings.HasSuffix(call.Path, "/events") && json.Unmarshal(body, &page) == nil {
		for _, o := range page.Data {
			c.seenByRun[run][o.ID] = true
		}
	}
}

// takeSeenCount returns how many objects the API has returned to a run, and removes the record. The
// run has ended.
func (c *simulationCaller) takeSeenCount(run int64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer delete(c.seenByRun, run)
	return len(c.seenByRun[run])
}

// flakyProvider is a provider that fails to apply some events at first.
type flakyProvider struct {
	stripe.Stripe
	sim *simulation

	mu     sync.Mutex
	random *rand.Rand
}

func (p *flakyProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	if p.fails() {
		return provider.Observation{}, reconciled.ErrProviderDown
	}
	return p.Stripe.Observe(src, e)
}

// Snapshot reads the response of a refetch.
func (p *flakyProvider) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if p.fails() {
		return provider.Observation{}, reconciled.ErrProviderDown
	}
	return p.Stripe.Snapshot(src, s)
}

func (p *flakyProvider) fails() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.IntN(100) < p.sim.applyFailurePercent
}
