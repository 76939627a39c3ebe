package endtoend_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// instance is a dev instance.
type instance struct {
	program, dir string
	*process
}

// newInstance prepares an instance in a folder, with a copy of the tests' cluster. If PostgreSQL's
// account cannot enter that folder, the database is in another one, which is removed too.
func newInstance(t *testing.T, bin, dir string) *instance {
	t.Helper()
	cluster, moved, err := postgres.ClusterDir(filepath.Join(dir, "postgres"))
	testkit.Must(t, err)
	if moved {
		t.Cleanup(func() { _ = os.RemoveAll(cluster) })
	}
	testkit.Must(t, testkit.PrepareCluster(t.Context(), cluster))
	t.Logf("state in %s, database in %s", dir, cluster)
	return &instance{program: filepath.Join(bin, "postern"), dir: dir}
}

func (i *instance) start(t *testing.T) {
	t.Helper()
	i.process, _ = start(t, i.program, "dev", "--dir", i.dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
}

// run runs a command of the command line and returns its output and exit status.
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

// object is the output of `objects show` for the sample subscription.
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

// send sends the sample event and waits for its object.
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

// Two instances run next to each other. Each has its own state, keeps it over a restart and a
// crash, and stops on a signal.
func TestDev_twoInstances_keepSeparateState(t *testing.T) {
	t.Parallel()
	bin := build(t)
	closed := t.TempDir() // only its owner can enter; if that is root, PostgreSQL's account cannot
	open, err := os.MkdirTemp("", "postern-dev-")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	testkit.Must(t, os.Chmod(open, 0o711))
	first, second := newInstance(t, bin, filepath.Join(closed, "state")),
		newInstance(t, bin, filepath.Join(open, "state"))
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
		t.Errorf("a tampered delivery: status %d, %v\n%s", status, err, out)
	}
	first.interrupt(t)
	second.send(t)                // is not affected
	second.end(t, syscall.SIGHUP) // as when its terminal closes

	first.start(t)
	if kept, _, err := first.subscription(t.Context()); err != nil || kept != sent {
		t.Errorf("after a restart %+v, was %+v, %v", kept, sent, err)
	}
	first.kill() // a crash
	first.start(t)
	if kept, _, err := first.subscription(t.Context()); err != nil || kept != sent {
		t.Errorf("after a crash %+v, was %+v, %v", kept, sent, err)
	}
	first.send(t)
	first.interrupt(t)
}

// Every program that accepts or applies deliveries reloads its sources at SIGHUP, and automatically
// when its file has changed. It still stops in order after that. For dev see
// TestDev_terminalCloses_stops.
func TestReload_sighupOrChangedFile_reloads(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for name, c := range map[string]struct {
		program string
		args    []string
		ignored bool
	}{
		"gateway":             {program: "gateway"},
		"processor":           {program: "processor"},
		"serve":               {program: "postern", args: []string{"serve"}},
		"gateway under nohup": {program: "gateway", ignored: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, dir := filepath.Join(t.TempDir(), "postern.yaml"), t.TempDir()
			text := settings(t)
			put(t, file, text)
			args := append(c.args, "--config", file)
			if c.program == "postern" {
				args = append(args, "--dir", dir)
			}
			program := filepath.Join(bin, c.program)
			if c.ignored {
				program, args = "/bin/sh", append([]string{"-c", `trap "" HUP; exec "$0" "$@"`, program}, args...)
			}
			p, at := start(t, program, args...)
			if c.program == "postern" {
				in, err := config.ReadInstance(dir)
				testkit.Must(t, err)
				at.Admin = in.AdminURL
			}
			testkit.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
			if c.ignored {
				testkit.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
			} else {
				testkit.Eventually(t, time.Minute, func() error { return counted(t, at.Admin, 1) })
			}
			put(t, file, strings.Replace(text, "  shop:", "  shop2:", 1))
			want := 2
			if c.ignored {
				want = 1
			}
			testkit.Eventually(t, time.Minute, func() error { return counted(t, at.Admin, want) })
			if in, err := config.ReadInstance(dir); c.program == "postern" &&
				(err != nil || in.Sources["shop2"].Provider != "shopify") {
				t.Errorf("the instance file lacks the new source: %+v, %v", in, err)
			}
			p.interrupt(t)
		})
	}
}

// counted returns nil if the metric has this number of successful reloads.
func counted(t *testing.T, admin string, want int) error {
	t.Helper()
	res, err := http.Get("http://" + strings.TrimPrefix(admin, "http://") + "/metrics")
	testkit.Must(t, err)
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	line := fmt.Sprintf("postern_config_reloads_total{result=\"ok\"} %d\n", want)
	if !strings.Contains("\n"+string(page), "\n"+line) {
		return fmt.Errorf("the metrics do not contain %s", line)
	}
	return nil
}

// put replaces a file atomically.
func put(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path+".next", []byte(text), 0o600))
	testkit.Must(t, os.Rename(path+".next", path))
}
