package admin_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// With approvals.separate, the token that requested a run may not approve what the run does.
// Another token may, and so may callers that are not known by a token.
func TestSeparateApprovals_ownRequest_isDenied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		separate bool
		// requester and approver are the names of tokens; "" for none.
		requester, approver string
		want                int
	}{
		"the same token":              {true, "ada", "ada", http.StatusForbidden},
		"another operator":            {true, "ada", "bob", http.StatusOK},
		"an approver":                 {true, "ada", "finance", http.StatusOK},
		"a request without a token":   {true, "", "ada", http.StatusOK},
		"an approval without a token": {true, "ada", "", http.StatusOK},
		"not separate":                {false, "ada", "ada", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := changing(t)
			b.moreEffects(t)
			h, _, _ := b.guarded(t, admin.Options{SeparateApprovals: c.separate})
			pool := b.role(t, "operator")
			tokens := map[string]string{"ada": "Bearer " + token(t, pool, "ada", adminauth.Operator),
				"bob":     "Bearer " + token(t, pool, "bob", adminauth.OperatorApprover),
				"finance": "Bearer " + token(t, pool, "finance", adminauth.Approver)}
			post := func(path, body, by string, want int) {
				t.Helper()
				before := b.state(t)
				res := postAs(h, path, body, "", tokens[by])
				if res.Code != want {
					t.Errorf("%s by %q: %s, want %d", path, by, responseText(res), want)
				}
				if want == http.StatusOK {
					return
				}
				if diff := cmp.Diff(before, b.state(t)); diff != "" ||
					!strings.Contains(res.Body.String(), "urn:postern:problem:own-request") {
					t.Errorf("%s by %q: %s %s", path, by, res.Body, diff)
				}
			}
			post("/replays", `{"source": "stripe", "mode": "force"}`, c.requester, http.StatusOK)
			post("/rebuilds", `{"source": "stripe"}`, c.requester, http.StatusOK)
			b.db.Exec(t, `UPDATE effects SET run = 1 WHERE effect <> 6; UPDATE effects SET forced = 1 WHERE effect = 6`)
			const reason = `{"reason": "agreed"}`
			post("/runs/1/approve", reason, c.approver, c.want)
			post("/rebuilds/2/swap", reason, c.approver, c.want)
			post("/effects/1/approve", reason, c.approver, c.want)
			post("/effects/approve", `{"ids": "6,7", "reason": "agreed"}`, c.approver, c.want)
			post("/effects/3/resolve", `{"step": "mail", "done": true, "captured": {"id": "x"}, "reason": "agreed"}`,
				c.approver, c.want)
			post("/effects/5/compensate", `{"partial": true, "reason": "agreed"}`, c.approver, c.want)
			post("/effects/8/reject", reason, c.approver, http.StatusOK) // this approves nothing
			if c.want == http.StatusOK && c.requester != "" && c.approver != "" {
				from := ", from 192.0.2.1:1234"
				testkit.Equal(t, "stored rows", []string{"token " + c.requester + from, "token " + c.approver + from,
					"replay " + c.requester, "runs approve " + c.approver},
					b.db.QueryStrings(t, `SELECT unnest(ARRAY[actor, approved_by]) FROM runs WHERE run = 1 UNION ALL
						(SELECT action || ' ' || actor FROM audit WHERE run = 1 ORDER BY id)`))
			}
		})
	}
}

// With approvals.separate, the token that requested what stored an event may not approve the
// effects of the event, although they are live.
func TestSeparateApprovals_eventOfOwnRequest_isDenied(t *testing.T) {
	t.Parallel()
	b := changing(t)
	h, _, _ := b.guarded(t, admin.Options{SeparateApprovals: true})
	ada := "Bearer " + token(t, b.role(t, "operator"), "ada", adminauth.Operator)
	b.db.Exec(t, `INSERT INTO audit (actor, via, address, action, target, reason, run)
		VALUES ('ada', 'token', '', 'reconcile', '', '', 7)`)
	for i, c := range []struct {
		origin, verification string
		want                 int
	}{
		{"reconcile", `{"scheme": "api", "requested_by": "token ada, from 192.0.2.1:1"}`, 403},
		{"webhook", `{"scheme": "hmac", "reprocessed_by": "token ada, from 192.0.2.1:1"}`, 403},
		{"reconcile", `{"scheme": "api", "run": 7}`, 403},
		{"reconcile", `{"scheme": "api", "run": 8}`, 200},
		{"reconcile", `{"scheme": "api", "requested_by": "token adam, from 192.0.2.1:1"}`, 200},
		{"import", `{"scheme": "api", "requested_by": "token ada, from 192.0.2.1:1"}`, 200},
		{"webhook", `{"scheme": "hmac"}`, 200},
	} {
		d := b.delivery("stripe", `{}`, provider.Event{Key: fmt.Sprint("own", i), Type: "order.updated"})
		d.Origin, d.Verification = c.origin, []byte(c.verification)
		b.db.Exec(t, `UPDATE effects SET state = 'awaiting_approval', due = NULL, run = 0, event_id = $1
			WHERE effect = 1`, b.store(t, d)[0])
		res := postAs(h, "/effects/1/approve", `{"reason": "agreed"}`, "", ada)
		if res.Code != c.want {
			t.Errorf("%s %s: %s", c.origin, c.verification, responseText(res))
		}
	}
}

// With approvals.separate, a rebuild cannot be requested together with its swap.
func TestSeparateApprovals_rebuildWithSwap_isDenied(t *testing.T) {
	t.Parallel()
	b := changing(t)
	h, _, operator := b.guarded(t, admin.Options{SeparateApprovals: true})
	for by, want := range map[string]int{"Bearer " + operator: http.StatusForbidden, "": http.StatusOK} {
		if res := postAs(h, "/rebuilds", `{"source": "stripe", "swap": true}`, "", by); res.Code != want {
			t.Errorf("%s, want %d", responseText(res), want)
		}
	}
}
