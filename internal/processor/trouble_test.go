package processor_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// A rule that cannot say what it wants is trouble that a person sees. Its event is applied all the same, and so is another rule.
func TestTroubleOfARuleIsNotItsEvents(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct{ when, key, trouble string }{
		"half a letter":      {`true`, `x:{{ "Zoë"[:3] }}`, "UTF-8"},
		"NUL":                {`true`, `x:{{ fromBase64("AA==") }}`, "NUL"},
		"NUL in the trouble": {`date(fromBase64("AA==")) == nil`, `x`, "invalid date"},
		"half in a trouble":  {`date("Zoë"[:3]) == nil`, `x`, "invalid date"},
		"a long trouble":     {`date(repeat("x", 100000)) == nil`, `x`, "…"},
		"too much work":      {`all(1..90000, len(repeat("x", 90000)) > 0)`, `x`, "too much work"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			rule, healthy := everyChange(t), everyChange(t)
			var err error
			if rule.When, err = rules.Compile(broken.when, rules.Scope{Change: true}, true); err != nil {
				t.Fatal(err)
			}
			if rule.Key, err = rules.CompileText(broken.key, rules.Scope{Change: true}); err != nil {
				t.Fatal(err)
			}
			healthy.Name = "healthy"
			p := b.ruled(t, rule, healthy)
			m := message(0, sim.Generate(rand.New(rand.NewPCG(1, 3)), kinds["own version"]).Events[0])
			apply(t, p, []stream.Event{m})
			got := b.db.Rows(t, `SELECT concat_ws(' ', rule, state) FROM effects ORDER BY rule`)
			if diff := cmp.Diff([]string{"every review", "healthy planned"}, got); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
			reasons := b.db.Rows(t, `SELECT reason FROM effects WHERE rule = 'every'`)
			if len(reasons) != 1 || !strings.Contains(reasons[0], broken.trouble) || len(reasons[0]) > 600 {
				t.Errorf("%q, want one about %s", reasons, broken.trouble)
			}
			if objects := b.db.Rows(t, `SELECT object_id FROM objects`); len(objects) != 1 {
				t.Errorf("objects %q", objects)
			}
		})
	}
}
