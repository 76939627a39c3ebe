package effects_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
)

// again has what followed from events happen again, by rules as they are by now.
func (b *testBundle) again(t *testing.T, run int64, r *effects.Rules, ids ...int64) (n effects.Again) {
	t.Helper()
	err := postgres.InTx(t.Context(), b.pool, "again", time.Minute, func(ctx context.Context, tx pgx.Tx) (err error) {
		n, err = effects.PlanAgain(ctx, tx, r, run, time.Now().Add(-time.Second), ids)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What happens again is what has ended, as its rule is by now: not what is on its way still, was rejected or undone, has lost what it was planned with or its rule, ended after the run was asked for, or was superseded.
func TestWhatHappensAgain(t *testing.T) {
	t.Parallel()
	const forced = `SELECT concat_ws(' ', key, rule_version, state, event_id, facts->'new'->>'price') FROM effects WHERE forced = 7 ORDER BY key`
	for name, c := range map[string]struct {
		sql  string
		rule func(*rules.Rule)
		want []string
		left int64
	}{
		"done":                 {"", nil, []string{"price:x:20 1 planned 1 20"}, 0},
		"expired":              {`UPDATE effects SET state = 'expired'`, nil, []string{"price:x:20 1 planned 1 20"}, 0},
		"rejected":             {`UPDATE effects SET state = 'rejected'`, nil, nil, 0},
		"on its way":           {`UPDATE effects SET state = 'failed', due = clock_now()`, nil, nil, 0},
		"cleared":              {`UPDATE effects SET facts = NULL`, nil, nil, 1},
		"undone":               {`UPDATE effects SET undoing = true`, nil, nil, 1},
		"ended later":          {`UPDATE effects SET updated_at = clock_now()`, nil, nil, 0},
		"of a rule that is no": {`UPDATE effects SET rule = 'another'`, nil, nil, 1},
		"a newer version":      {"", func(r *rules.Rule) { r.Version = 3 }, []string{"price:x:20 3 planned 1 20"}, 0},
		"with approval":        {"", func(r *rules.Rule) { r.Approval = rules.ApproveOnReplay }, []string{"price:x:20 1 waiting 1 20"}, 0},
		"the last state":       {"", func(r *rules.Rule) { r.Supersede = true }, []string{"price:x:20 1 planned 1 20"}, 0},
		"an earlier state": {`INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, planned_at, updated_at)
			SELECT 'price:x:30', 1, rule, source, account, object_type, object_id, 2, 0, 'review', destination, planned_at, updated_at FROM effects`, func(r *rules.Rule) { r.Supersede = true }, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, rule(t, "price", price, false))
			b.plan(t, change(1, "", "x", `{"price": 20}`))
			b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 h'`)
			if c.sql != "" {
				b.db.Exec(t, c.sql)
			}
			now := rule(t, "price", price, false)
			if c.rule != nil {
				c.rule(now)
			}
			for range 2 {
				n := b.again(t, 7, effects.NewRules([]*rules.Rule{now}), 1, 2)
				if n.Planned != int64(len(c.want)) || n.Left != c.left {
					t.Errorf("%+v, want %d left", n, c.left)
				}
			}
			if diff := cmp.Diff(c.want, b.db.Rows(t, forced), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A run that goes on after the version of a rule was raised, or that comes to an older entry of a key in a later chunk, plans nothing twice, and counts each once.
func TestOnceForEachRunUnderAnyVersion(t *testing.T) {
	t.Parallel()
	const forced = `SELECT concat_ws(' ', key, rule_version, event_id) FROM effects WHERE forced = 7 ORDER BY key, rule_version`
	for name, c := range map[string]struct {
		// versions are those of the rule, 0 for none, by which each chunk of events is planned.
		versions []int
		chunks   [][]int64
		want     []string
		planned  []int64
	}{
		"raised":               {[]int{3, 4}, [][]int64{{1, 2}, {1, 2}}, []string{"price:x:20 3 2"}, []int64{1, 1}},
		"not configured":       {[]int{3, 0}, [][]int64{{1, 2}, {1, 2}}, []string{"price:x:20 3 2"}, []int64{1, 1}},
		"two chunks":           {[]int{3, 3}, [][]int64{{1}, {2}}, []string{"price:x:20 3 1"}, []int64{1, 0}},
		"two chunks, raised":   {[]int{3, 4}, [][]int64{{1}, {2}}, []string{"price:x:20 3 1"}, []int64{1, 0}},
		"smaller chunks after": {[]int{3, 3, 3}, [][]int64{{1, 2}, {1}, {2}}, []string{"price:x:20 3 2"}, []int64{1, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			at := func(version int) *effects.Rules {
				if version == 0 {
					return effects.NewRules([]*rules.Rule{rule(t, "another", price, false)})
				}
				r := rule(t, "price", price, false)
				r.Version = version
				return effects.NewRules([]*rules.Rule{r})
			}
			for event := range int64(2) {
				b.rules = at(int(event) + 1)
				b.plan(t, change(event+1, "", "x", `{"price": 20}`))
			}
			b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 h'`)
			for i, ids := range c.chunks {
				if n := b.again(t, 7, at(c.versions[i]), ids...); n.Planned != c.planned[i] || n.Left != 0 {
					t.Errorf("chunk %d: %+v, want %d", i, n, c.planned[i])
				}
			}
			if diff := cmp.Diff(c.want, b.db.Rows(t, forced)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
