package reconciled

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// StripeEnv is a Stripe source with a fake account and real clients.
type StripeEnv struct {
	*Env
	Fake   *stripefake.Fake
	Config *provider.Source
}

// NewStripeEnv makes a source that is pinned to an account, or to none.
func NewStripeEnv(t *testing.T, pinned string, o stripefake.Options) *StripeEnv {
	t.Helper()
	b := &StripeEnv{Env: newEnvWithoutAPI(t), Fake: stripefake.New(t, o),
		Config: &provider.Source{Name: applied.SourceName, Account: pinned}}
	s := b.Sources[applied.SourceName]
	s.Config, s.Provider = b.Config, stripe.Stripe{}
	b.Sources[applied.SourceName] = s
	return b
}

// Deliver appends and applies the webhooks of the account that are not lost, and returns the number
// of lost ones.
func (b *StripeEnv) Deliver(t *testing.T, lost func(n int) bool) (missing int64) {
	t.Helper()
	var ds []*provider.Delivery
	n := 0
	b.Fake.Deliver(func(d *provider.Delivery) bool {
		if n++; lost(n) {
			missing++
		} else {
			ds = append(ds, d)
		}
		return true
	})
	applied.AppendAndApply(t, b.Gateway, b.Applier(t, nil), b.Sources[applied.SourceName], ds...)
	return missing
}

// Runner makes a runner as in a process of its own, with its own client. Its calls go through
// watch.
func (b *StripeEnv) Runner(t *testing.T, api *provider.API,
	watch func(providerapi.Caller) providerapi.Caller) *reconcile.Runner {
	t.Helper()
	sources := &providerapi.Sources{}
	source := &providerapi.Source{Name: applied.SourceName, Number: b.Source, Config: b.Config, API: api,
		Provider: stripe.Stripe{}, Reader: stripe.Stripe{}}
	source.Caller = watch(newClient(t, b.Pool, source))
	sources.Replace(source)
	s := reconcile.DefaultSettings
	s.RetryDelay = 10 * time.Millisecond
	limits := refetch.DefaultLimits
	limits.ListDelay = time.Second
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.Gateway, Applier: b.Applier(t, nil),
		Sources: sources, Limits: limits}, Settings: s}
}

func (b *StripeEnv) APIAt(url string) *provider.API {
	return &provider.API{BaseURL: url, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)},
		Version: stripefake.Version, Rate: 1000, Concurrency: 3, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
}

func SameCaller(c providerapi.Caller) providerapi.Caller { return c }

const ConnectedAccount = "acct_1"

// ChildTypes are the types of child objects, with the account of their scans.
var ChildTypes = map[string]string{"card": ConnectedAccount, "tax_id": ConnectedAccount, "person": ConnectedAccount,
	"bank_account": ConnectedAccount, "account": ConnectedAccount + "/test",
	"treasury.received_credit": ConnectedAccount, "fee_refund": ConnectedAccount}

// RunOnce executes a run in one process, and returns it when it has ended or awaits an approval.
func (b *StripeEnv) RunOnce(t *testing.T, api *provider.API, o reconcile.Params) *runs.Run {
	t.Helper()
	stop := b.StartReconciler(t, b.Runner(t, api, SameCaller))
	defer stop()
	run := b.StartRun(t, o)
	return b.WaitForRun(t, run, EndedOrAwaitsApproval)
}

// OtherIDs serves a fake with ids that no other fake has.
func OtherIDs(f *stripefake.Fake) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.NewReplacer("Fake", "None", "Else", "Fake").Replace(r.URL.Path)
		answer := httptest.NewRecorder()
		f.ServeHTTP(answer, r)
		w.Header().Set("Date", answer.Header().Get("Date"))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(bytes.ReplaceAll(answer.Body.Bytes(), []byte("Fake"), []byte("Else")))
	})
}

// OtherAccountAPI is the API for a key of another account, which has a number of objects of a type.
func (b *StripeEnv) OtherAccountAPI(t *testing.T, objectType string, n int) http.Handler {
	t.Helper()
	other := stripefake.New(t, stripefake.Options{Seed: 22, Start: b.Fake.Now()})
	for range n {
		other.Create("", objectType, nil)
	}
	other.Advance(2 * time.Minute)
	return OtherIDs(other)
}

// WithoutEvents is a provider that lists objects and no events.
type WithoutEvents struct{ provider.ObjectLister }

// RunnerWithoutEvents makes a runner whose API lists no events. The API is of another account: its
// list has a number of other objects. Of the mirror's objects it knows those that exists accepts.
func (b *Env) RunnerWithoutEvents(t *testing.T, others int, exists func(id string) bool) *reconcile.Runner {
	t.Helper()
	r := b.RunnerWith(func(s *providerapi.Source) { s.Reader = WithoutEvents{sim.Provider{}} })
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		id, named := strings.CutPrefix(c.Path, "/things/")
		switch {
		case c.Path == "/list":
			list := make([]string, others)
			for i := range list {
				list[i] = fmt.Sprintf(`{"id":"theirs_%d","answer":%s}`, i,
					b.API.History.StoredRefetch("obj_1", sim.Refetch{Began: b.API.Time.UnixMicro()}).Body)
			}
			return b.Response(provider.Found, fmt.Appendf(nil, `{"things":[%s]}`, strings.Join(list, ","))), nil
		case named && !exists(id):
			return b.MissingResponse(), nil
		case strings.HasPrefix(id, "theirs"):
			return b.Response(provider.Found,
				b.API.History.StoredRefetch("obj_1", sim.Refetch{Began: b.API.Time.UnixMicro()}).Body), nil
		}
		return nil, nil
	}
	return r
}

// LivingOptions are options for histories with existing objects only.
func LivingOptions(n int) sim.Options {
	return sim.Options{Objects: n, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 2_000_000}
}

// Nonzero removes counts of 0, and the clock skew of a fake.
func Nonzero(counts map[string]int64) map[string]int64 {
	delete(counts, reconcile.SkewSeconds)
	for name, n := range counts {
		if n == 0 {
			delete(counts, name)
		}
	}
	return counts
}

func LoseNone(int) bool { return false }

func LoseAll(int) bool { return true }
