package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// user is a person with a terminal in a folder, and with both programs.
type user struct{ bin, folder string }

func newUser(t *testing.T) *user {
	t.Helper()
	bin, err := testkit.Programs("cmd/postern", "test/playground")
	if err != nil {
		t.Fatal(err)
	}
	return &user{bin: bin, folder: t.TempDir()}
}

func (u *user) command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(u.bin, program), args...)
	cmd.Dir = u.folder
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "POSTERN_") })
	return cmd
}

// run runs a program, which must end with status 0, and returns its output.
func (u *user) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := u.command(t, program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, &stderr)
	}
	return string(out)
}

// start starts the playground, waits until it is ready, and returns what ends it as Ctrl-C does.
func (u *user) start(t *testing.T) (interrupt func() error) {
	t.Helper()
	cmd := u.command(t, "playground")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its PostgreSQL
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	end := sync.OnceValue(func() error {
		_ = cmd.Cancel() // it may have ended
		return cmd.Wait()
	})
	t.Cleanup(func() { _ = end() })
	lines := bufio.NewReader(stdout)
	for line := ""; !strings.HasPrefix(line, "Ctrl-C"); {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("the playground is not ready: %v, %v", err, end())
		}
	}
	return end
}

// awaitMirrored waits until a source has n mirrored objects of a type.
func (u *user) awaitMirrored(t *testing.T, objectType string, n int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		out := u.run(t, "postern", "--dir", dir, "objects", "list", "--limit", "0")
		if got := strings.Count(out, " "+objectType+" "); got != n {
			return fmt.Errorf("%d objects of type %s are mirrored, want %d", got, objectType, n)
		}
		return nil
	})
}

// step is a command of a page, with the output that the page shows.
type step struct {
	program string
	args    []string
	shown   []string
}

// steps reads the commands of the section about the playground.
func steps(t *testing.T) (all []step) {
	t.Helper()
	page, err := os.ReadFile("../../docs/reconciliation.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "## Try it without an account\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		text, code := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		words := strings.Fields(text)
		switch {
		case code && strings.HasPrefix(text, "$ go run ./"):
			all = append(all, step{program: filepath.Base(words[3]), args: words[4:]})
		case code && text != "...":
			all[len(all)-1].shown = append(all[len(all)-1].shown, text)
		}
	}
	if len(all) < 10 {
		t.Fatalf("the section has %d commands", len(all))
	}
	return all
}

// drift returns the ids of the objects by how they differed in a run, and whether each was
// repaired.
func (u *user) drift(t *testing.T, run string) (ids map[string][]string, repaired bool) {
	t.Helper()
	var report struct {
		Differences []struct {
			ID     string `json:"object_id"`
			Kind   string
			Result string
		}
	}
	out := u.run(t, "postern", "--dir", dir, "drift", "report", run, "-o", "json")
	must(t, json.Unmarshal([]byte(out), &report))
	ids, repaired = map[string][]string{}, true
	for _, d := range report.Differences {
		ids[d.Kind] = append(ids[d.Kind], d.ID)
		repaired = repaired && d.Result == "repaired"
	}
	return ids, repaired
}

// The commands of docs/reconciliation.md, in its order, print the lines that it shows. The reports
// name exactly the objects that the playground changed, deleted, and lost the webhooks of.
func TestPlayground_commandsOfThePage_reportExactlyWhatWasDone(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	interrupt := u.start(t)
	instance, err := config.ReadInstance(filepath.Join(u.folder, dir))
	must(t, err)
	u.awaitMirrored(t, "customer", startObjects)
	u.awaitMirrored(t, "product", startObjects)
	id := regexp.MustCompile(`(?m)^  (\S+)$`)
	done := map[string][]string{} // ids by "stripe change-silently", "stripe lost"
	for _, s := range steps(t) {
		out := u.run(t, s.program, s.args...)
		rest := strings.Split(out, "\n")
		for _, line := range s.shown {
			i := slices.Index(rest, line)
			if i < 0 {
				t.Fatalf("%s %s does not print %q, or not there, in:\n%s", s.program, strings.Join(s.args, " "), line,
					out)
			}
			rest = rest[i+1:]
		}
		if s.program == "postern" {
			continue
		}
		said, lost, _ := strings.Cut(out, "lost webhooks of:\n")
		for name, text := range map[string]string{s.args[0] + " " + s.args[1]: said, s.args[0] + " lost": lost} {
			for _, m := range id.FindAllStringSubmatch(text, -1) {
				done[name] = append(done[name], m[1])
			}
		}
		if s.args[1] == "create" {
			u.awaitMirrored(t, "customer", startObjects+len(done["stripe create"])-len(done["stripe lost"]))
		}
	}
	for name, n := range map[string]int{"stripe change-silently": 5, "stripe delete-silently": 2, "stripe lost": 3,
		"shop change-silently": 5, "shop delete-silently": 2} {
		if len(done[name]) != n {
			t.Errorf("%s: %v, want %d", name, done[name], n)
		}
	}
	for run, want := range map[string]struct {
		source   string
		repaired bool
	}{"1": {"stripe", false}, "2": {"stripe", true}, "4": {"shop", true}} {
		ids, repaired := u.drift(t, run)
		for kind, did := range map[string]string{"mirror_older": "change-silently", "orphan": "delete-silently",
			"missing": "lost"} {
			if !slices.Equal(ids[kind], done[want.source+" "+did]) {
				t.Errorf("run %s reports %v as %s, want %v", run, ids[kind], kind, done[want.source+" "+did])
			}
			delete(ids, kind)
		}
		if len(ids) > 0 || repaired != want.repaired {
			t.Errorf("run %s: the others are %v; repaired: %t, want %t", run, ids, repaired, want.repaired)
		}
	}
	u.checkFaults(t, instance)
	u.checkEnd(t, interrupt)
}

// checkFaults checks that Postern received the two responses with 429, and waited for the delayed
// list.
func (u *user) checkFaults(t *testing.T, instance *config.Instance) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(instance.AdminURL + "/metrics")
	must(t, err)
	defer response.Body.Close()
	metrics, err := io.ReadAll(response.Body)
	want := `postern_api_calls_total{source="stripe",verdict="throttled"} 2`
	if err != nil || !strings.Contains(string(metrics), want) {
		t.Errorf("the metrics have no %s (%v)", want, err)
	}
	var run struct {
		Started time.Time `json:"started_at"`
		Ended   time.Time `json:"ended_at"`
	}
	out := u.run(t, "postern", "--dir", dir, "runs", "show", "4", "-o", "json")
	must(t, json.Unmarshal([]byte(out), &run))
	if took := run.Ended.Sub(run.Started); took < 3*time.Second {
		t.Errorf("the run over a list with a delay of 3 s took %s", took)
	}
}

// checkEnd ends the playground and checks that PostgreSQL has ended with it, and that no file is
// left.
func (u *user) checkEnd(t *testing.T, interrupt func() error) {
	t.Helper()
	cluster, _, err := postgres.ClusterDir(filepath.Join(u.folder, dir, "postgres"))
	must(t, err)
	lock, err := os.ReadFile(filepath.Join(cluster, "data", "postmaster.pid"))
	must(t, err)
	pid := 0
	if _, err := fmt.Sscan(string(lock), &pid); err != nil || syscall.Kill(pid, 0) != nil {
		t.Fatalf("PostgreSQL does not run as process %d (%v)", pid, err)
	}
	if err := interrupt(); err != nil {
		t.Errorf("the playground ended with %v", err)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("PostgreSQL still runs as process %d", pid)
	}
	if left, err := os.ReadDir(u.folder); err != nil || len(left) > 0 {
		t.Errorf("the folder has %v after the end (%v)", left, err)
	}
	if _, err := os.Stat(cluster); err == nil {
		t.Errorf("%s is there after the end", cluster)
	}
}

// must ends the test where there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
