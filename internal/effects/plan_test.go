package effects_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type testBundle struct {
	db    *testkit.DB
	pool  *pgxpool.Pool
	rules *effects.Rules
}

func setup(t *testing.T, all ...*rules.Rule) *testBundle {
	t.Helper()
	db := testkit.Database(t)
	return &testBundle{db, db.Role(t, "processor"), effects.NewRules(all)}
}

// rule is one about invoices of the shop.
func rule(t *testing.T, name, key string, supersede bool) *rules.Rule {
	t.Helper()
	text, err := rules.CompileText(key, rules.Scope{Change: true})
	if err != nil {
		t.Fatal(err)
	}
	return &rules.Rule{Name: name, Source: "shop", Type: "invoice", Key: text, Version: 1, Approval: rules.ApproveNone, Supersede: supersede, Steps: []rules.Step{{Name: "tell", Destination: "there"}}}
}

// change is one of an invoice of the shop.
func change(event int64, account, id, state string) *effects.Transition {
	return &effects.Transition{Source: "shop", Number: 1, Account: account, Type: "invoice", ID: id, New: []byte(state), Event: effects.Event{ID: event}}
}

// plan plans what follows from changes in one transaction.
func (b *testBundle) plan(t *testing.T, changes ...*effects.Transition) (n effects.Counted) {
	t.Helper()
	var all []effects.Intent
	for _, c := range changes {
		all = append(all, b.rules.Intents(c)...)
	}
	err := postgres.InTx(t.Context(), b.pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) (err error) {
		n, err = effects.Plan(ctx, tx, 0, all)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// last is the effect that was entered last.
func (b *testBundle) last(t *testing.T) (effect int64) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT max(effect) FROM effects`).Scan(&effect); err != nil {
		t.Fatal(err)
	}
	return effect
}

const (
	price = "price:{{ object.id }}:{{ new.price }}"
	live  = `SELECT concat_ws(' ', key, state, event_id, facts->'new'->>'price', facts->'event'->>'id') FROM effects WHERE state <> 'superseded' ORDER BY key`
)

// However changes are put into transactions, what is carried out in the end is what the object's last change wants, with the facts of that change.
func TestTheLastChangeSupersedes(t *testing.T) {
	t.Parallel()
	superseding := rule(t, "price", price, true)
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
			if n := single.plan(t, c); len(n.Due) != 1 {
				t.Errorf("seed %d: %+v", seed, n)
			}
			if batch = append(batch, c); r.IntN(4) == 0 {
				batched.plan(t, batch...)
				batch = nil
			}
		}
		batched.plan(t, batch...)
		var want []string
		for _, id := range []string{"in_0", "in_1"} {
			want = append(want, last[id])
		}
		if diff := cmp.Diff(want, single.db.Rows(t, live)); diff != "" {
			t.Errorf("seed %d, one by one (-want +got):\n%s", seed, diff)
		}
		if diff := cmp.Diff(want, batched.db.Rows(t, live)); diff != "" {
			t.Errorf("seed %d, in batches (-want +got):\n%s", seed, diff)
		}
	}
}

// What was begun is neither superseded nor revived, and its key stays known; what was not begun gives way to it all the same.
func TestWhatWasBegunIsNotSuperseded(t *testing.T) {
	t.Parallel()
	b := setup(t, rule(t, "price", price, true))
	b.plan(t, change(1, "", "x", `{"price": 20}`))
	b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL`)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) VALUES (1, 'tell', 0, 'done', 'there', '', 1, clock_now())`)
	b.plan(t, change(2, "", "x", `{"price": 100}`))
	if got := b.db.Rows(t, `SELECT state FROM effects ORDER BY key DESC`); !cmp.Equal(got, []string{"done", "planned"}) {
		t.Error(got)
	}
	if n := b.plan(t, change(3, "", "x", `{"price": 20}`)); n.Known != 1 || n.New != 0 || len(n.Due) != 0 {
		t.Errorf("%+v", n)
	}
	if got := b.db.Rows(t, `SELECT concat_ws(' ', state, event_id) FROM effects ORDER BY key DESC`); !cmp.Equal(got, []string{"done 1", "superseded 2"}) {
		t.Error(got)
	}
}

// Objects and rules of one account may share a key on purpose: what it names follows once.
func TestSharedKeysAreOneEffect(t *testing.T) {
	t.Parallel()
	const key = "receipt:{{ new.number }}"
	b := setup(t, rule(t, "receipt", key, false), rule(t, "second", key, false))
	if n := b.plan(t, change(1, "a", "in_1", `{"number": 7}`), change(2, "a", "in_2", `{"number": 7}`)); n.New != 1 || n.Known != 3 || n.Collided != 0 {
		t.Errorf("%+v", n)
	}
}

// A key that two accounts, rules or objects share is one effect of the first; a person sees the other, in one transaction and in two, once.
func TestCollidingKeysAreSeen(t *testing.T) {
	t.Parallel()
	const key = "receipt:{{ new.number }}"
	for name, c := range map[string]struct {
		rules []*rules.Rule
		other *effects.Transition
		says  string
	}{
		"account": {[]*rules.Rule{rule(t, "receipt", key, false)}, change(2, "b", "in_1", `{"number": 7}`), "another account"},
	} {
		for _, together := range []bool{true, false} {
			t.Run(fmt.Sprint(name, together), func(t *testing.T) {
				t.Parallel()
				b := setup(t, c.rules...)
				var n effects.Counted
				changes := []*effects.Transition{change(1, "a", "in_1", `{"number": 7}`)}
				if c.other != nil {
					changes = append(changes, c.other)
				}
				if together {
					n = b.plan(t, changes...)
				} else {
					for _, change := range changes {
						one := b.plan(t, change)
						n.New, n.Collided = n.New+one.New, n.Collided+one.Collided
					}
				}
				if n.New != 2 || n.Collided != 1 {
					t.Errorf("%+v", n)
				}
				if again := b.plan(t, changes...); again.New != 0 || again.Collided != 0 {
					t.Errorf("the same again: %+v", again)
				}
				got := b.db.Rows(t, `SELECT concat_ws(' | ', key, state, reason) FROM effects ORDER BY effect`)
				if len(got) != 2 || got[0] != "receipt:7 | planned | " || !strings.Contains(got[1], ":trouble:") || !strings.Contains(got[1], "| review | key: receipt:7 is that of effect 1, of "+c.says) {
					t.Error(got)
				}
				if _, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"shop": "stripe"}); err != nil {
					t.Fatal(err)
				}
				if all, err := effects.Show(t.Context(), b.db.Role(t, "operator"), b.last(t)); err != nil || !strings.Contains(all[0].Next, "by hand") {
					t.Error(all, err)
				}
			})
		}
	}
}

// What expired while it waited for its approval is planned again where the object comes back to it, with the new change.
func TestWhatExpiredComesBack(t *testing.T) {
	t.Parallel()
	b := setup(t, rule(t, "price", price, true))
	b.plan(t, change(1, "", "x", `{"price": 20}`))
	b.db.Exec(t, `UPDATE effects SET state = 'expired', due = NULL, reason = 'nobody approved it within 72h'`)
	b.plan(t, change(2, "", "x", `{"price": 100}`))
	b.plan(t, change(3, "", "x", `{"price": 20}`))
	if got := b.db.Rows(t, live); !cmp.Equal(got, []string{"price:x:20 planned 3 20 3"}) {
		t.Error(got)
	}
}

// Nobody has said no to what expired: a change that wants it asks again, also of an object that had not left it. Who said no has said so for good.
func TestWhatExpiredIsAskedAgain(t *testing.T) {
	t.Parallel()
	for state, want := range map[effects.State]struct {
		live []string
		next string
	}{
		effects.Expired:  {[]string{"price:x:20 planned 2 20 2"}, "unless it is planned again: by the next change that wants its key"},
		effects.Rejected: {[]string{"price:x:20 rejected 1 20 1"}, "a person rejected it"},
	} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := setup(t, rule(t, "price", price, true))
			b.plan(t, change(1, "", "x", `{"price": 20}`))
			b.db.Exec(t, `UPDATE effects SET state = $1, due = NULL`, state)
			if _, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"shop": "stripe"}); err != nil {
				t.Fatal(err)
			}
			if v, err := effects.Show(t.Context(), b.db.Pool, 1); err != nil || !strings.Contains(v[0].Next, want.next) {
				t.Errorf("%+v, %v", v, err)
			}
			b.plan(t, change(2, "", "x", `{"price": 20, "note": "b"}`))
			if got := b.db.Rows(t, live); !cmp.Equal(got, want.live) {
				t.Error(got)
			}
		})
	}
}
