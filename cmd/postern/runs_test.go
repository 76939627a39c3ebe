package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
)

// A run that was put off says so, and why, in the list, in show and to whoever watches.
func TestARunPutOffSaysWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k", `{"a": 1}`)
	b.run(t, "replay", "--yes", "--no-wait").want(t, 0, "waiting", "")
	for _, want := range []string{"put off once  permission denied\n", "put off 2 times  permission denied\n"} {
		h, err := runs.Take(t.Context(), b.db.Role(t, "processor"), "test", time.Minute, replay.Job)
		if err != nil || h == nil {
			t.Fatal(h, err)
		}
		if _, err := h.PutOff(t.Context(), errors.New("permission denied"), 0, 0); err != nil {
			t.Fatal(err)
		}
		b.run(t, "runs", "show", "1").want(t, 0, want, "")
	}
	b.run(t, "runs", "list").want(t, 0, "permission denied\n", "")
	b.run(t, "runs", "show", "1", "-o", "json").want(t, 0, `"troubles": 2`, "")
	var out bytes.Buffer
	(&watcher{out: &out}).tell(&runs.Run{Run: 1, Job: replay.Job, Status: runs.Running, Detail: "permission\ndenied", Troubles: 2}, time.Now())
	if !strings.HasSuffix(out.String(), "; put off 2 times: permission·denied\n") {
		t.Errorf("watched: %q", out.String())
	}
	b.run(t, "runs", "cancel", "1").want(t, 0, "at last    permission denied\n", "")
}
