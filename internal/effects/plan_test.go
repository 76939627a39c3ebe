package effects_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type fixture struct {
	db    *testkit.DB
	pool  *pgxpool.Pool
	rules *effects.Rules
}

func setup(t *testing.T, all ...*rules.Rule) *fixture {
	t.Helper()
	db := testkit.Database(t)
	return &fixture{db, db.Role(t, "processor"), effects.NewRules(all)}
}

// rule returns a rule about invoices of the shop.
func rule(t *testing.T, name, key string, supersede bool) *rules.Rule {
	t.Helper()
	text, err := rules.CompileText(key, rules.Scope{Change: true})
	testkit.Must(t, err)
	return &rules.Rule{Name: name, Source: "shop", Type: "invoice", Key: text, Version: 1, Approval: rules.ApproveNone,
		Supersede: supersede, Steps: []rules.Step{{Name: "tell", Destination: "there"}}}
}

// change returns a change of an invoice of the shop.
func change(event int64, account, id, state string) *effects.Transition {
	return &effects.Transition{Source: "shop", Number: 1, Account: account, Type: "invoice", ID: id, New: []byte(state),
		Event: effects.Event{ID: event}}
}

// plan plans the effects of changes in one transaction.
func (b *fixture) plan(t *testing.T, changes ...*effects.Transition) (n effects.PlanResult) {
	t.Helper()
	var all []effects.PlannedEffect
	for _, c := range changes {
		all = append(all, b.rules.Evaluate(c)...)
	}
	err := postgres.InTx(t.Context(), b.pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) (err error) {
		n, err = effects.Plan(ctx, tx, 0, all)
		return err
	})
	testkit.Must(t, err)
	return n
}

// show returns an effect. It registers the source, whose name the ledger does not have.
func (b *fixture) show(t *testing.T, id int64) effects.View {
	t.Helper()
	_, err := events.RegisterSources(t.Context(), b.pool, map[string]string{"shop": "stripe"})
	testkit.Must(t, err)
	all, err := effects.Show(t.Context(), b.db.Role(t, "operator"), id)
	testkit.Must(t, err)
	return all[0]
}

// wantRows checks the rows of a query of one text column.
func (b *fixture) wantRows(t *testing.T, sql string, want ...string) {
	t.Helper()
	testkit.Equal(t, sql, want, b.db.QueryStrings(t, sql), cmpopts.EquateEmpty())
}

const (
	priceKey  = "price:{{ object.id }}:{{ new.price }}"
	activeSQL = `SELECT concat_ws(' ', key, state, event_id, template_data->'new'->>'price',
		template_data->'event'->>'id') FROM effects
		WHERE state <> 'superseded' ORDER BY key`
)

// However changes are grouped into transactions, the last change of an object decides which effect
// remains, with the template data of that change.
func TestPlan_supersedingRule_keepsOnlyTheLastChange(t *testing.T) {
	t.Parallel()
	superseding := rule(t, "price", priceKey, true)
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		single, batched := setup(t, superseding), setup(t, superseding)
		var batch []*effects.Transition
		was, last := map[string]int{}, map[string]string{}
		for event := int64(1); event <= 20; event++ {
			id, to := fmt.Sprint("in_", r.IntN(2)), 10+r.IntN(3)
			if was[id] == to {
				to = 99
			}
			was[id] = to
			last[id] = fmt.Sprintf("price:%s:%d planned %d %d %d", id, to, event, to, event)
			c := change(event, "", id, fmt.Sprintf(`{"price": %d}`, to))
			if n := single.plan(t, c); len(n.DueDestinations) != 1 {
				t.Errorf("seed %d: %+v", seed, n)
			}
			if batch = append(batch, c); r.IntN(4) == 0 {
				batched.plan(t, batch...)
				batch = nil
			}
		}
		batched.plan(t, batch...)
		for how, b := range map[string]*fixture{"one by one": single, "in batches": batched} {
			testkit.Equal(t, fmt.Sprintf("seed %d, %s", seed, how), []string{last["in_0"], last["in_1"]},
				b.db.QueryStrings(t, activeSQL))
		}
	}
}

// A started effect is neither superseded nor revived, and its key is not planned again. An effect
// that has not started is superseded.
func TestPlan_startedEffect_isNeitherSupersededNorRevived(t *testing.T) {
	t.Parallel()
	b := setup(t, rule(t, "price", priceKey, true))
	b.plan(t, change(1, "", "x", `{"price": 20}`))
	b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL`)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts,
		reserved_at) VALUES (1, 'tell', 0, 'done', 'there', '', 1, clock_now())`)
	b.plan(t, change(2, "", "x", `{"price": 100}`))
	b.wantRows(t, `SELECT state FROM effects ORDER BY key DESC`, "done", "planned")
	if n := b.plan(t, change(3, "", "x", `{"price": 20}`)); n.Existing != 1 || n.New != 0 ||
		len(n.DueDestinations) != 0 {
		t.Errorf("%+v", n)
	}
	b.wantRows(t, `SELECT concat_ws(' ', state, event_id) FROM effects ORDER BY key DESC`, "done 1", "superseded 2")
}

// Objects and rules of one account may share a key on purpose. It is planned once.
func TestPlan_keySharedWithinAccount_isOneEffect(t *testing.T) {
	t.Parallel()
	const key = "receipt:{{ new.number }}"
	b := setup(t, rule(t, "receipt", key, false), rule(t, "second", key, false))
	if n := b.plan(t, change(1, "a", "in_1", `{"number": 7}`), change(2, "a", "in_2", `{"number": 7}`)); n.New != 1 ||
		n.Existing != 3 || n.Collided != 0 {
		t.Errorf("%+v", n)
	}
}

// If two accounts share a key, the effect belongs to the first. The second needs review, once,
// whether they come in one transaction or in two.
func TestPlan_keySharedAcrossAccounts_needsReview(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint("together ", together), func(t *testing.T) {
			t.Parallel()
			b := setup(t, rule(t, "receipt", "receipt:{{ new.number }}", false))
			first, other := change(1, "a", "in_1", `{"number": 7}`), change(2, "b", "in_1", `{"number": 7}`)
			var n effects.PlanResult
			if together {
				n = b.plan(t, first, other)
			} else {
				n = b.plan(t, first)
				second := b.plan(t, other)
				n.New, n.Collided = n.New+second.New, n.Collided+second.Collided
			}
			if n.New != 2 || n.Collided != 1 {
				t.Errorf("%+v", n)
			}
			if again := b.plan(t, first, other); again.New != 0 || again.Collided != 0 {
				t.Errorf("repeated: %+v", again)
			}
			got := b.db.QueryStrings(t, `SELECT concat_ws(' | ', key, state, reason) FROM effects ORDER BY effect`)
			const want = "| needs_review | key: receipt:7 belongs to effect 1, of another account"
			if len(got) != 2 || got[0] != "receipt:7 | planned | " || !strings.Contains(got[1], ":trouble:") ||
				!strings.Contains(got[1], want) {
				t.Error(got)
			}
			last, err := strconv.ParseInt(b.db.QueryStrings(t, `SELECT max(effect)::text FROM effects`)[0], 10, 64)
			testkit.Must(t, err)
			if v := b.show(t, last); !strings.Contains(v.AllowedActions, "by hand") {
				t.Error(v)
			}
		})
	}
}

// Expiry is no decision of an operator. The next change that wants the key plans the effect again,
// with or without another key in between. A rejection is final.
func TestPlan_keyWantedAgain_revivesExpiredButNotRejected(t *testing.T) {
	t.Parallel()
	const nextChange = "It starts only if it is planned again: by the next change that wants its key"
	for name, c := range map[string]struct {
		state        effects.State
		changes      []string
		active, next string
	}{
		"expired": {effects.Expired, []string{`{"price": 20, "note": "b"}`}, "price:x:20 planned 2 20 2", nextChange},
		"expired, another key in between": {effects.Expired, []string{`{"price": 100}`, `{"price": 20}`},
			"price:x:20 planned 3 20 3", nextChange},
		"rejected": {effects.Rejected, []string{`{"price": 20, "note": "b"}`}, "price:x:20 rejected 1 20 1",
			"an operator rejected it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, rule(t, "price", priceKey, true))
			b.plan(t, change(1, "", "x", `{"price": 20}`))
			b.db.Exec(t, `UPDATE effects SET state = $1, due = NULL, reason = 'not approved in time'`, c.state)
			if v := b.show(t, 1); !strings.Contains(v.AllowedActions, c.next) {
				t.Errorf("%+v", v)
			}
			for i, state := range c.changes {
				b.plan(t, change(int64(i)+2, "", "x", state))
			}
			b.wantRows(t, activeSQL, c.active)
		})
	}
}

// planForced plans effects of events again for a run, under the current rules.
func (b *fixture) planForced(t *testing.T, run int64, r *effects.Rules, ids ...int64) (n effects.ForcedPlan) {
	t.Helper()
	err := postgres.InTx(t.Context(), b.pool, "again", time.Minute, func(ctx context.Context, tx pgx.Tx) (err error) {
		n, err = effects.PlanForced(ctx, tx, r, run, time.Now().Add(-time.Second), ids)
		return err
	})
	testkit.Must(t, err)
	return n
}

// PlanForced repeats effects that have ended, under their current rule. It leaves out effects that
// are in progress, rejected or compensated, that have lost their template data or their rule, that
// ended after the run was requested, or that were superseded.
func TestPlanForced_selectsEndedEffects(t *testing.T) {
	t.Parallel()
	const forced = `SELECT concat_ws(' ', key, rule_version, state, event_id, template_data->'new'->>'price')
		FROM effects WHERE forced = 7 ORDER BY key`
	again, newVersion := []string{"price:x:20 1 planned 1 20"}, []string{"price:x:20 3 planned 1 20"}
	for name, c := range map[string]struct {
		sql     string
		rule    func(*rules.Rule)
		want    []string
		skipped int64
	}{
		"done":                    {"", nil, again, 0},
		"expired":                 {`UPDATE effects SET state = 'expired'`, nil, again, 0},
		"rejected":                {`UPDATE effects SET state = 'rejected'`, nil, nil, 0},
		"in progress":             {`UPDATE effects SET state = 'failed', due = clock_now()`, nil, nil, 0},
		"cleared":                 {`UPDATE effects SET template_data = NULL`, nil, nil, 1},
		"compensated":             {`UPDATE effects SET compensating = true`, nil, nil, 1},
		"ended after the request": {`UPDATE effects SET updated_at = clock_now()`, nil, nil, 0},
		"rule removed":            {`UPDATE effects SET rule = 'another'`, nil, nil, 1},
		"a newer version":         {"", func(r *rules.Rule) { r.Version = 3 }, newVersion, 0},
		"with approval": {"", func(r *rules.Rule) { r.Approval = rules.ApproveOnReplay },
			[]string{"price:x:20 1 awaiting_approval 1 20"}, 0},
		"last change, superseding rule": {"", func(r *rules.Rule) { r.Supersede = true }, again, 0},
		"earlier change, superseding rule": {`INSERT INTO effects (key, rule_version, rule, source, account,
			object_type, object_id, event_id, run, state, destination, planned_at, updated_at)
			SELECT 'price:x:30', 1, rule, source, account, object_type, object_id, 2, 0, 'needs_review', destination,
				planned_at, updated_at FROM effects`, func(r *rules.Rule) { r.Supersede = true }, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, rule(t, "price", priceKey, false))
			b.plan(t, change(1, "", "x", `{"price": 20}`))
			b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 h'`)
			if c.sql != "" {
				b.db.Exec(t, c.sql)
			}
			now := rule(t, "price", priceKey, false)
			if c.rule != nil {
				c.rule(now)
			}
			for range 2 {
				n := b.planForced(t, 7, effects.NewRules([]*rules.Rule{now}), 1, 2)
				if n.Planned != int64(len(c.want)) || n.Skipped != c.skipped {
					t.Errorf("%+v, want %d skipped", n, c.skipped)
				}
			}
			b.wantRows(t, forced, c.want...)
		})
	}
}

// A run that continues after a rule's version was raised, or finds an older effect of a key in a
// later chunk, plans nothing twice, and counts each effect once.
func TestPlanForced_resumedRun_plansEachKeyOnce(t *testing.T) {
	t.Parallel()
	const forced = `SELECT concat_ws(' ', key, rule_version, event_id) FROM effects WHERE forced = 7
		ORDER BY key, rule_version`
	for name, c := range map[string]struct {
		// versions are the rule versions with which each chunk is planned, 0 for no rule.
		versions []int
		chunks   [][]int64
		want     []string
		planned  []int64
	}{
		"raised":             {[]int{3, 4}, [][]int64{{1, 2}, {1, 2}}, []string{"price:x:20 3 2"}, []int64{1, 1}},
		"not configured":     {[]int{3, 0}, [][]int64{{1, 2}, {1, 2}}, []string{"price:x:20 3 2"}, []int64{1, 1}},
		"two chunks":         {[]int{3, 3}, [][]int64{{1}, {2}}, []string{"price:x:20 3 1"}, []int64{1, 0}},
		"two chunks, raised": {[]int{3, 4}, [][]int64{{1}, {2}}, []string{"price:x:20 3 1"}, []int64{1, 0}},
		"smaller chunks after": {[]int{3, 3, 3}, [][]int64{{1, 2}, {1}, {2}}, []string{"price:x:20 3 2"},
			[]int64{1, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			at := func(version int) *effects.Rules {
				if version == 0 {
					return effects.NewRules([]*rules.Rule{rule(t, "another", priceKey, false)})
				}
				r := rule(t, "price", priceKey, false)
				r.Version = version
				return effects.NewRules([]*rules.Rule{r})
			}
			for event := range int64(2) {
				b.rules = at(int(event) + 1)
				b.plan(t, change(event+1, "", "x", `{"price": 20}`))
			}
			b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 h'`)
			for i, ids := range c.chunks {
				if n := b.planForced(t, 7, at(c.versions[i]), ids...); n.Planned != c.planned[i] || n.Skipped != 0 {
					t.Errorf("chunk %d: %+v, want %d", i, n, c.planned[i])
				}
			}
			b.wantRows(t, forced, c.want...)
		})
	}
}

// Show and the error of Retry name the event for which a rule failed, and say when the rule is
// evaluated next.
func TestShow_ruleFailure_namesItsSubject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	each := rule(t, "each", "{{ new.none }}", false)
	each.On = rules.OnEvent
	b.rules = effects.NewRules([]*rules.Rule{rule(t, "change", "{{ new.none }}", false), each})
	of := change(8, "", "in_1", `{}`)
	of.On = rules.OnEvent
	b.plan(t, change(7, "", "in_1", `{}`))
	b.plan(t, of)
	for i, want := range []string{
		"event 7 by hand, because a replay does not repeat its change; then fix the rule, which is evaluated for the " +
			"object's next change, and ",
		"event 8 by hand, because a replay does not evaluate it again; then fix the rule, which is evaluated for the " +
			"next event, and ",
	} {
		id := int64(i + 1)
		if v := b.show(t, id); !strings.Contains(v.AllowedActions, want) {
			t.Errorf("%+v", v)
		}
		err := postgres.InTx(t.Context(), b.db.Pool, "retry", time.Minute,
			func(ctx context.Context, tx pgx.Tx) error { _, err := effects.Retry(ctx, tx, id); return err })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v", err)
		}
	}
}
