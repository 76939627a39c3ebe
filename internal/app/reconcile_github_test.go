package app_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// startGitHub starts everything with a source of the fake's.
func startGitHub(t *testing.T, fake *githubfake.Fake, key, more string) *reloading {
	t.Helper()
	return startReading(t, fmt.Sprintf("  code:\n    provider: github\n    secrets: [{name: s, value: %s}]\n    api: {base_url: %s, key: {value: %s}, rate: 500, hooks: [%s], repositories: [%s]%s}\n",
		githubfake.Secret, fake.URL, key, strings.Join(fake.Hooks(), ", "), strings.Join(fake.Repositories(), ", "), more))
}

// A webhook of GitHub's that is lost is lost: half of them are, some come twice, late or in another order, and some GitHub takes for received. After one run over what it says it
// sent, and the looks that are owed, the mirror is GitHub's, and what comes after all is a duplicate.
func TestReconcileGitHub(t *testing.T) {
	t.Parallel()
	fake := githubfake.New(t, githubfake.Options{Seed: 3, Running: true, Start: time.Now(), Objects: 12,
		Webhooks: githubfake.Webhooks{Lost: 40, Swallowed: 10, Doubled: 10, Shuffled: 30, Delayed: 5, Delay: time.Hour}, Faults: githubfake.Faults{Hurried: 1, Broken: 3, Dropped: 2}})
	r := startGitHub(t, fake, githubfake.Key, "")
	fake.Live(150)
	post := func(d *provider.Delivery) bool {
		status, _ := r.post(t, "code", d)
		return status == http.StatusOK
	}
	fake.Deliver(post)
	fake.Advance(time.Hour) // behind what a run leaves to the next
	fake.Deliver(post)
	fake.Advance(time.Minute)
	if wrong := r.againstGitHub(t, fake); len(wrong) == 0 {
		t.Fatal("nothing is wrong: there is nothing to prove")
	}
	run := r.reconciled(t, reconcile.Order{What: reconcile.Events})
	c := run.Counts
	if run.Status != runs.Done || c[reconcile.Missing] == 0 || c[reconcile.Undelivered] == 0 || c[reconcile.Undelivered] >= c[reconcile.Missing] ||
		c[reconcile.Seen] != c[reconcile.Missing]+c[reconcile.Present] || c[reconcile.Conflicting] != 0 {
		t.Errorf("%s with %v: %s", run.Status, c, run.Detail)
	}
	testkit.Eventually(t, time.Minute, func() error {
		if wrong := r.againstGitHub(t, fake); len(wrong) > 0 {
			return fmt.Errorf("%d objects are not as GitHub has them, the first: %s", len(wrong), wrong[0])
		}
		return nil
	})
	if again := r.reconciled(t, reconcile.Order{What: reconcile.Events}); again.Status != runs.Done || again.Counts[reconcile.Missing] != 0 || again.Counts[reconcile.Seen] == 0 {
		t.Errorf("again: %s with %v: %s", again.Status, again.Counts, again.Detail)
	}
}

// againstGitHub are the objects that the mirror does not show as they are.
func (r *reloading) againstGitHub(t *testing.T, fake *githubfake.Fake) (wrong []string) {
	t.Helper()
	for _, o := range fake.Truth() {
		var state []byte
		var deleted, doubt bool
		err := r.db.Pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT state, deleted, ambiguous OR look_after <> 0 FROM objects WHERE object_type = $1 AND object_id = $2`, o.Type, o.ID).
			Scan(&state, &deleted, &doubt)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Sprintf("%s %s: %v", o.Type, o.ID, err))
		case doubt || deleted != (o.Body == nil) || !deleted && stable(t, state) != stable(t, o.Body):
			wrong = append(wrong, fmt.Sprintf("%s %s (deleted %t, in doubt %t):\n%s", o.Type, o.ID, deleted, doubt, cmp.Diff(string(o.Body), string(state))))
		}
	}
	return wrong
}

// stable sums up what does not change without a version, nor is told by webhooks or the API alone.
func stable(t *testing.T, text []byte) [32]byte {
	t.Helper()
	v, err := canonical.Parse(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v.Sum(canonical.Options{DropNull: true, Without: []string{"closed_by", "delete_branch_on_merge", "mergeable", "mergeable_state", "network_count", "permissions", "short_description_html",
		"squash_merge_commit_title"}})
}

// GitHub's objects are read by what is known of them, not by their names: an event that comes late owes them a look all the same, and none those of a type that the API does not read.
func TestLateEventsOfGitHubOweLooks(t *testing.T) {
	t.Parallel()
	fake := githubfake.New(t, githubfake.Options{Seed: 5, Running: true, Start: time.Now(), Objects: 12})
	r := startGitHub(t, fake, githubfake.Key, "")
	lived := func(n int) {
		t.Helper()
		fake.Live(n)
		fake.Deliver(func(d *provider.Delivery) bool {
			status, _ := r.post(t, "code", d)
			return status == http.StatusOK
		})
		r.applied(t)
	}
	lived(40)
	r.db.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) SELECT DISTINCT source, account, 'type ' || object_type, to_timestamp(0), now() + interval '1 day', 1, now() FROM objects`)
	if hints := r.db.Rows(t, `SELECT object_id FROM hints WHERE reason = 'an event came late'`); len(hints) > 0 {
		t.Fatalf("hints before anything is proven: %q", hints)
	}
	lived(40)
	if hints := r.db.Rows(t, `SELECT object_id FROM hints WHERE reason = 'an event came late'`); len(hints) == 0 {
		t.Error("no late event owes a look")
	}
	if odd := r.db.Rows(t, `SELECT object_type FROM hints WHERE reason = 'an event came late' AND object_type NOT IN ('repository', 'label', 'issue', 'pull_request', 'milestone', 'issue_comment',
		'pull_request_review_comment', 'commit_comment', 'release', 'deployment', 'deployment_status', 'workflow_run', 'workflow_job', 'check_suite', 'check_run')`); len(odd) > 0 {
		t.Errorf("looks are owed of %q, which GitHub does not read", odd)
	}
}
