package app_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// A processor tells what waits for a person, to whom the configuration says by now.
func TestAnEffectThatWaitsIsTold(t *testing.T) {
	t.Parallel()
	r := startReloading(t, source("a", "one"), time.Hour)
	other := sink.New(t)
	rule := strings.Replace(paidRule(other.URL, 1), "    rule_version", "    approval: required\n    rule_version", 1)
	replace(t, r.file, r.head+"sources:\n"+source("a", "one")+rule+"notify:\n  oncall: {to: mail, path: /alerts, after: 1s}\n")
	r.reload(t, "ok")
	if id := r.mustPost(t, "a", r.sign(t, "a", "invoice.paid", 1, time.Now().Add(-time.Minute))).ID; r.outcome(t, id) != "applied" {
		t.Fatal("not applied")
	}
	testkit.Eventually(t, time.Minute, func() error {
		if calls := other.Calls(); len(calls) != 1 || calls[0].Path != "/alerts" || !strings.Contains(calls[0].Body, `"about":"waiting_effects","state":"began","count":1`) {
			return fmt.Errorf("told: %+v", calls)
		}
		return nil
	})
}
