package operations_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// withSources returns a database with the sources stripe and shop, and their numbers.
func withSources(t *testing.T) (*testkit.DB, map[string]int32) {
	t.Helper()
	db := testkit.Database(t)
	known, err := events.RegisterSources(t.Context(), db.Pool, map[string]string{"stripe": "stripe", "shop": "shopify"})
	testkit.Must(t, err)
	return db, known.Number
}

// store appends a webhook of a source, and returns the id of its last event.
func store(t *testing.T, db *testkit.DB, source int32, body string, all ...provider.Event) int64 {
	t.Helper()
	receipts, err := events.Append(t.Context(), db.Pool, []events.Delivery{{Source: source,
		ReceivedAt: time.Now().UTC(), Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: []byte(body), Events: all}})
	testkit.Must(t, err)
	return receipts[0][len(all)-1].ID
}

// appendEvent stores an event of order 7 and returns its id.
func appendEvent(t *testing.T, db *testkit.DB, source int32, key string) int64 {
	t.Helper()
	return store(t, db, source, key, provider.Event{Key: key, Type: "order.paid", ObjectType: "order", ObjectID: "7"})
}

// Texts returns what Parse has read: the run's audit and the comparison of two requests with one
// idempotency key depend on it.
func TestTexts_ofParsed_areTheSame(t *testing.T) {
	t.Parallel()
	for _, given := range []map[string]string{
		{},
		{"source": "stripe", "account": "", "since": "6h", "until": "2026-01-02", "rate": "2.5", "publish": "true"},
		{"ids": "", "mode": "force", "reason": "r", "idempotency_key": "k"},
		{"ids": "1882151976960000001,1882151976960000002", "status": "dead"},
	} {
		var p operations.ReplayParams
		testkit.Must(t, operations.Parse(&p, given))
		testkit.Equal(t, "texts", given, operations.Texts(p))
	}
	var p operations.EventParams
	p.Since, p.Limit = operations.At(time.UnixMilli(0).UTC()), new(5)
	testkit.Equal(t, "typed", map[string]string{"since": "1970-01-01T00:00:00Z", "limit": "5"}, operations.Texts(p))
}

// A text of another form is rejected with the parameter's name. An empty list of ids is not the
// same as none: it selects nothing.
func TestParse_otherForm_isRejected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][2]string{
		"sauce":   {"x", `parameter "sauce" does not exist; the parameters are source, account, type`},
		"publish": {"1", `publish "1": give true or false`},
		"since":   {"soon", `since "soon": write an RFC 3339 time, a date, or how long ago`},
		"rate":    {"fast", `rate "fast" is not a number`},
		"ids":     {"1882151976960000001,x", `"x" is not an id of Postern`},
		"key":     {"a\x00", "key: the text contains the character U+0000"},
		"reason":  {"a\xff", "reason: the text contains"},
	} {
		var p operations.ReplayParams
		err := operations.Parse(&p, map[string]string{name: c[0]})
		if !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want it to say %q", name, err, c[1])
		}
	}
	if err := operations.Parse(&struct{}{}, map[string]string{"x": "y"}); err == nil ||
		!strings.Contains(err.Error(), `parameter "x" does not exist; this request has no parameters`) {
		t.Errorf("a request without parameters: %v", err)
	}
	var p operations.ReplayParams
	testkit.Must(t, operations.Parse(&p, map[string]string{"ids": "", "since": "", "rate": "", "account": ""}))
	if p.IDs == nil || len(p.IDs) != 0 || p.Account == nil || p.Rate != nil || !p.Since.IsZero() {
		t.Errorf("%+v", p)
	}
	retry := operations.RetryParams{Run: 7}
	testkit.Must(t, operations.Parse(&retry, map[string]string{"run": ""}))
	if retry.Run != 0 {
		t.Errorf("an empty run is run %d, want the live run", retry.Run)
	}
	if err := operations.Parse(&p, map[string]string{"reason": "r"}, "reason"); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a parameter that does not exist here: %v", err)
	}
}

// Typed parameters are checked as well as texts are.
func TestCheck_valuesOutsideTheirSet_areRejected(t *testing.T) {
	t.Parallel()
	ctx, none := t.Context(), operations.ReplayParams{}
	replay := func(change func(*operations.ReplayParams)) error {
		p := none
		change(&p)
		_, err := p.Replay(ctx, nil)
		return err
	}
	for says, err := range map[string]error{
		`status "lost" is not a valid value; use one of pending, applied`: replay(func(p *operations.ReplayParams) {
			p.Status = "lost"
		}),
		`mode "x" is not a valid value; use one of state, missing, force`: replay(func(p *operations.ReplayParams) {
			p.Mode = "x"
		}),
		`rate "0": give a number of events per second, at least 1`: replay(func(p *operations.ReplayParams) {
			p.Rate = new(0.0)
		}),
		`limit "0": give 1 to 1000`: func() error {
			_, err := operations.Conflicts(ctx, nil, operations.ConflictParams{Page: operations.Page{Limit: new(0)}})
			return err
		}(),
		`limit "1001": give 1 to 1000`: func() error {
			_, err := operations.Audit(ctx, nil, operations.AuditParams{Page: operations.Page{Limit: new(1001)}})
			return err
		}(),
	} {
		if !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want it to say %q", err, says)
		}
	}
	testkit.Must(t, replay(func(p *operations.ReplayParams) { p.Rate = new(1.0) }))
}

// Commands and the API describe every parameter, and describe none that does not exist.
func TestHelp_everyParameter_hasOne(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, params := range []any{operations.AnnounceParams{}, operations.AuditParams{}, operations.BacktestParams{},
		operations.CompareParams{}, operations.CompensateParams{}, operations.ConflictParams{},
		operations.DifferenceParams{}, operations.EffectParams{}, operations.EffectsParams{}, operations.ReasonParams{},
		operations.RuleName{}, operations.EventName{}, operations.EventParams{}, operations.NewTokenParams{},
		operations.ObjectName{}, operations.ObjectParams{}, operations.OutcomeParams{}, operations.OverwriteParams{},
		operations.PendingRefetchParams{}, operations.Page{}, operations.RebuildParams{}, operations.ReconcileParams{},
		operations.RedactParams{}, operations.RejectionParams{}, operations.RemoveSpoolParams{},
		operations.ReplayParams{}, operations.RefetchParams{}, operations.ResolveParams{},
		operations.RetentionPolicyParams{}, operations.RetryParams{}, operations.RunChange{}, operations.RunParams{},
		operations.RunScheduleParams{}, operations.ScheduleChange{}, operations.SourceParams{}, operations.RunRequest{},
		operations.ActivityParams{}, operations.FindParams{}, operations.FailureParams{}, operations.HistoryParams{},
		operations.HistoryDiffParams{}, operations.ObjectAtParams{}, operations.ReprocessParams{},
		operations.RejectionSelection{}, operations.SourceTypeParams{}, operations.TailParams{},
		operations.ChangeParams{}, operations.FeedCursorParams{}} {
		for _, p := range operations.Params(params) {
			if used[p.Help] = true; p.Help == "" {
				t.Errorf("%T: %s has no help", params, p.Name)
			}
		}
	}
	for name, text := range operations.Help {
		if !used[text] {
			t.Errorf("no parameter has the help of %s", name)
		}
	}
}
