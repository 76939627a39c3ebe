package endtoend_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// instance is a dev instance of a test.
type instance struct {
	program, dir string
	*process
}

// newInstance prepares an instance in a folder; what PostgreSQL's account could not enter is cleared away elsewhere too.
func newInstance(t *testing.T, bin, dir string) *instance {
	t.Helper()
	cluster, moved, err := postgres.ClusterDir(filepath.Join(dir, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if moved {
		t.Cleanup(func() { _ = os.RemoveAll(cluster) })
	}
	t.Logf("state in %s, database in %s", dir, cluster)
	return &instance{program: filepath.Join(bin, "postern"), dir: dir}
}

func (i *instance) start(t *testing.T) {
	t.Helper()
	i.process, _ = start(t, i.program, "dev", "--dir", i.dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
}

// run runs one of the operator's commands and returns what it printed and its exit status.
func (i *instance) run(ctx context.Context, args ...string) (out string, status int, err error) {
	cmd := exec.CommandContext(ctx, i.program, append([]string{"--dir", i.dir}, args...)...)
	cmd.Env = environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return "", -1, err
	}
	if err != nil {
		err = fmt.Errorf("postern %v: %w: %s", args, err, &stderr)
	}
	return stdout.String(), cmd.ProcessState.ExitCode(), err
}

// object is what `objects show` says of the sample subscription.
type object struct {
	ObjectID string `json:"object_id"`
	Revision int
	State    struct{ Status string }
}

func (i *instance) subscription(ctx context.Context) (o object, status int, err error) {
	out, status, err := i.run(ctx, "objects", "show", "stripe", "subscription", "sub_1Postern0Team0001", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &o)
	}
	return o, status, err
}

// send sends the sample event and waits for the object it tells of.
func (i *instance) send(t *testing.T) object {
	t.Helper()
	if out, _, err := i.run(t.Context(), "send", "stripe", "customer.subscription.updated"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var o object
	testkit.Eventually(t, time.Minute, func() (err error) {
		o, _, err = i.subscription(t.Context())
		return err
	})
	return o
}

// Two instances side by side: each has its own state, keeps it over a restart, and stops when asked.
func TestDevInstances(t *testing.T) {
	t.Parallel()
	bin := build(t)
	closed := t.TempDir() // its owner's alone: where that is root, PostgreSQL's account cannot enter
	open, err := os.MkdirTemp("", "postern-dev-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	if err := os.Chmod(open, 0o711); err != nil {
		t.Fatal(err)
	}
	first, second := newInstance(t, bin, filepath.Join(closed, "state")), newInstance(t, bin, filepath.Join(open, "state"))
	first.start(t)
	second.start(t)
	sent := first.send(t)
	if sent.State.Status != "active" || sent.Revision != 1 {
		t.Errorf("object %+v", sent)
	}
	if _, status, err := second.subscription(t.Context()); status != 3 {
		t.Errorf("the other instance has the object too: status %d, %v", status, err)
	}
	if out, status, err := second.run(t.Context(), "send", "stripe", "invoice.paid", "--tamper"); status != 1 {
		t.Errorf("a forgery: status %d, %v\n%s", status, err, out)
	}
	first.interrupt(t)
	second.send(t)                // which does not mind
	second.end(t, syscall.SIGHUP) // as when its terminal closes

	first.start(t)
	if kept, _, err := first.subscription(t.Context()); err != nil || kept != sent {
		t.Errorf("after a restart %+v, was %+v, %v", kept, sent, err)
	}
	first.kill() // and it comes back after a crash
	first.start(t)
	if kept, _, err := first.subscription(t.Context()); err != nil || kept != sent {
		t.Errorf("after a crash %+v, was %+v, %v", kept, sent, err)
	}
	first.send(t)
	first.interrupt(t)
}
