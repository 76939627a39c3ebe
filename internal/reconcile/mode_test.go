package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A platform's live endpoint gets the events of both modes of a connected account, whose charges are kept under one account. A live key does not see those of test mode: they are neither asked for nor
// taken for missing, while one of live mode that is gone is.
func TestASweepLeavesTheOtherMode(t *testing.T) {
	t.Parallel()
	const key, connected = "rk_live_all", "acct_1"
	b := newShop(t, "", stripefake.Options{Seed: 13, Live: true, Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
	kept := b.fake.Create(connected, "charge", nil)
	b.deliver(t, func(int) bool { return false })
	for id, live := range map[string]bool{"ch_test": false, "ch_gone": true} {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', $1::text, 'state', o.state || jsonb_build_object('id', $1::text, 'livemode', $2::bool))) AS o
			FROM objects o WHERE object_id = $3) o`, id, live, kept)
	}
	b.fake.Advance(time.Minute)
	api := b.api(b.fake.URL)
	api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, api, asIs).Carry})
	run := func(o reconcile.Order) *runs.Run {
		o.Source, o.Account, o.Type = b.Source, connected, "charge"
		id, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return b.Until(t, id, func(r *runs.Run) bool { return r.Status.Final() })
	}
	swept := run(reconcile.Order{What: reconcile.Objects})
	if c := swept.Counts; swept.Status != runs.Done || c[reconcile.Equal] != 1 || c[reconcile.Ghosts] != 1 || c[reconcile.Left] != 1 {
		t.Errorf("%s with %v: %s", swept.Status, c, swept.Detail)
	}
	if looked := run(reconcile.Order{What: reconcile.Object, ID: "ch_test"}); looked.Status != runs.Failed || !strings.Contains(looked.Detail, "test or live") {
		t.Errorf("a look with the key of the other mode: %s: %s", looked.Status, looked.Detail)
	}
	if now := b.DB.Rows(t, `SELECT object_id || ' ' || deleted FROM objects ORDER BY object_id`); !slices.Equal(now, []string{kept + " false", "ch_gone true", "ch_test false"}) {
		t.Errorf("the mirror has %v", now)
	}
	for _, r := range b.fake.Requests() {
		if strings.HasSuffix(r.Path, "/ch_test") {
			t.Errorf("%s was asked for: %s", r.Path, fmt.Sprint(r.Status))
		}
	}
}
