package reconciled

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	applied.AppendAndApply(t, b.gateway, b.Applier(t, nil), b.Sources[applied.SourceName], ds...)
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
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.gateway, Applier: b.Applier(t, nil),
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

// ChildDifferences returns the child objects that differ in the mirror.
func (b *StripeEnv) ChildDifferences(t *testing.T) (wrong []string) {
	t.Helper()
	for _, o := range b.Fake.CurrentObjects() {
		account, below := ChildTypes[o.Type]
		if !below {
			continue
		}
		var state []byte
		var deleted bool
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT state, deleted FROM objects WHERE account = $1
			AND object_type = $2 AND object_id = $3`, account, o.Type, o.ID).Scan(&state, &deleted)
		var is, want map[string]any
		if err == nil && deleted == o.Deleted() && deleted {
			continue
		}
		if err == nil {
			_, _ = json.Unmarshal(state, &is), json.Unmarshal(o.Body, &want)
			delete(is, "hosted_regulatory_receipt_url")
			delete(want, "hosted_regulatory_receipt_url")
		}
		if err != nil || deleted != o.Deleted() || !cmp.Equal(is, want) {
			wrong = append(wrong, fmt.Sprintf("%s %s: %v: deleted %t: %s", o.Type, o.ID, err, deleted,
				cmp.Diff(want, is)))
		}
	}
	return wrong
}

// ReconcileAll reconciles all accounts one after the other, in a process whose source excludes
// some. It returns the ended runs by account.
func (b *StripeEnv) ReconcileAll(t *testing.T, api *provider.API, except []string,
	o reconcile.Params) map[string]*runs.Run {
	t.Helper()
	r := b.Runner(t, api, SameCaller)
	r.Sources.All()[b.Source].ExcludedAccounts = except
	defer b.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: r.Execute})()
	o.Source, o.AllAccounts = b.Source, true
	run := b.StartRun(t, o)
	WantRunDone(t, b.WaitForEnd(t, run))
	entered, err := reconcile.StartedRuns(t.Context(), b.OperatorPool, run)
	if err != nil {
		t.Fatal(err)
	}
	if len(entered) == 0 { // the run itself reconciled the only account, or there is none
		entered = append(entered, run)
	}
	ended := map[string]*runs.Run{}
	for _, run := range entered {
		ended[b.accountOf(t, run)] = b.WaitForEnd(t, run)
	}
	return ended
}

// accountOf returns the account of a run.
func (b *StripeEnv) accountOf(t *testing.T, run int64) string {
	t.Helper()
	return QueryOne[string](t, b.Env, `SELECT params ->> 'account' FROM runs WHERE run = $1`, run)
}

// WantAll checks that all runs have ended with a status and found no disconnected account.
func (b *StripeEnv) WantAll(t *testing.T, ended map[string]*runs.Run, detail string, status runs.Status) {
	t.Helper()
	for account, r := range ended {
		if r.Status != status || !strings.Contains(r.Detail, detail) || r.Counts[reconcile.Disconnected] != 0 {
			t.Errorf("account %q: %s with %v: %s", account, r.Status, r.Counts, r.Detail)
		}
	}
}

// CompleteUntil returns the watermark of the events of an account.
func (b *StripeEnv) CompleteUntil(t *testing.T, account string) time.Time {
	t.Helper()
	_, until := b.CompleteRange(t, account, reconcile.Events)
	if until.IsZero() {
		t.Fatalf("account %q has no watermark", account)
	}
	return until
}

// APIWithTenCalls returns the shop's API with ten calls a month, and the number of calls. The
// twelfth gets its response when the channel is closed.
func (b *StripeEnv) APIWithTenCalls(t *testing.T, twelfth <-chan struct{}) (*provider.API, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	api := b.APIAt(Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 12 {
			<-twelfth
		}
		b.Fake.ServeHTTP(w, r)
	}))
	api.MonthlyCalls = 10
	return api, &calls
}

// PassDays lets days pass for the quota.
func (b *StripeEnv) PassDays(t *testing.T, days int) {
	t.Helper()
	b.DB.Exec(t, `UPDATE rate_budgets SET calls = (SELECT coalesce(jsonb_object_agg(c.key::int - $1::int, c.value),
		'{}')
		FROM jsonb_each(calls) c)`, days)
}

// RaiseQuota replaces the configuration with one that has a sufficient quota, as a reload does.
func (b *StripeEnv) RaiseQuota(t *testing.T, r *reconcile.Runner, api *provider.API) {
	t.Helper()
	more := *api
	more.MonthlyCalls = 1000
	other := b.Runner(t, &more, SameCaller)
	for _, s := range other.Sources.All() {
		r.Sources.Replace(s)
	}
}

// MissingEvents returns the events of the account that are not in the log.
func (b *StripeEnv) MissingEvents(t *testing.T) (missed []string) {
	t.Helper()
	log := map[string]bool{}
	for _, key := range b.DB.QueryStrings(t, `SELECT event_id FROM events`) {
		log[key] = true
	}
	for _, e := range b.Fake.Events() {
		if !log[e.ID] {
			missed = append(missed, e.ID)
		}
	}
	return missed
}

// RunOnce executes a run in one process, and returns it when it has ended or awaits an approval.
func (b *StripeEnv) RunOnce(t *testing.T, api *provider.API, o reconcile.Params) *runs.Run {
	t.Helper()
	o.Source = b.Source
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

// OnlyEventTime returns the time of the only event in the log.
func (b *Env) OnlyEventTime(t *testing.T) (at time.Time) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(occurred_at, received_at) FROM events
		WHERE origin = 'webhook'`).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
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

// AddUndeliveredEvent adds an event without a webhook, for example of a type that is not
// subscribed.
func (b *StripeEnv) AddUndeliveredEvent(t *testing.T) {
	t.Helper()
	b.Fake.Create("", "charge", nil)
	b.Deliver(t, LoseAll)
	b.Fake.Advance(time.Minute)
}

// DeletedObjects returns the objects that are deleted in the mirror.
func (b *StripeEnv) DeletedObjects(t *testing.T) []string {
	t.Helper()
	return b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`)
}

// CopyAsTypes copies the things of the mirror as objects of other types, which the API does not
// read and the latest webhooks are about.
func (b *Env) CopyAsTypes(t *testing.T, types ...string) {
	t.Helper()
	for _, typ := range types {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).*
			FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text)) AS o FROM objects o
				WHERE object_type = 'thing') o`, typ)
	}
	b.DB.Exec(t, `UPDATE objects o SET last_event_id = CASE WHEN o.object_type = 'thing' THEN w.oldest ELSE w.newest END
		FROM (SELECT min(id) AS oldest, max(id) AS newest FROM events WHERE origin = 'webhook') w`)
}

// WantAwaitsApproval checks that a scan with a wrong key changes nothing and awaits approval with
// the given words.
func (b *Env) WantAwaitsApproval(t *testing.T, words string) {
	t.Helper()
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	r := b.WaitForRun(t, run, EndedOrAwaitsApproval)
	if r.Status != runs.AwaitingApproval || !strings.Contains(r.Detail, words) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	wrong := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted OR object_id LIKE 'theirs%'`)
	if len(wrong) > 0 || !b.TypeCompleteUntil(t).IsZero() {
		t.Errorf("complete until %s, deleted or of another account are %q", b.TypeCompleteUntil(t), wrong)
	}
}

// AppendWebhook appends a webhook without applying it.
func (b *StripeEnv) AppendWebhook(t *testing.T, body string) (id int64) {
	t.Helper()
	d := &provider.Delivery{ReceivedAt: b.Fake.Now(), Body: []byte(body)}
	return applied.AppendDeliveries(t, b.gateway, b.Sources[applied.SourceName], d)[0].ID
}
