package effects_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// What a person is told of a rule that could not say what is to follow names what the rule is asked about, to whoever looks and to whoever has it tried again.
func TestTroubleNamesWhatIsAskedAbout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	each := rule(t, "each", "{{ new.none }}", false)
	each.On = rules.OnEvent
	b.rules = effects.NewRules([]*rules.Rule{rule(t, "change", "{{ new.none }}", false), each})
	if _, err := events.RegisterSources(t.Context(), b.pool, map[string]string{"shop": "stripe"}); err != nil {
		t.Fatal(err)
	}
	of := change(8, "", "in_1", `{}`)
	of.On = rules.OnEvent
	b.plan(t, change(7, "", "in_1", `{}`))
	b.plan(t, of)
	for i, want := range []string{
		"event 7 by hand, as a replay does not make its change again; then mend the rule, which sees the object's next change, and ",
		"event 8 by hand, as a replay does not ask about it again; then mend the rule, which is asked about the next event, and ",
	} {
		id := int64(i + 1)
		all, err := effects.Show(t.Context(), b.pool, id)
		if err != nil || !strings.Contains(all[0].Next, want) {
			t.Errorf("%+v, %v", all, err)
		}
		err = postgres.InTx(t.Context(), b.db.Pool, "retry", time.Minute, func(ctx context.Context, tx pgx.Tx) error { _, err := effects.Retry(ctx, tx, id); return err })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("told %v", err)
		}
	}
}
