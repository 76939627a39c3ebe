package documents_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
)

const playgroundDir = ".playground"

// shopSteps are the steps of the tutorial with the fake shop, and with a slow list.
const shopSteps = "```console\n" +
	`$ postern --dir .playground objects list --source shop --type product --limit 0 | wc -l
41
$ playground shop change-silently 5
...
$ playground shop delete-silently 2
...
$ playground shop delay-lists 1s
shop delays its responses to list requests by 1s from now on
$ postern --dir .playground reconcile shop --type product --full
...
objects     40 processed, 33 equal, 5 mirror older, 2 orphans, 7 repaired
...
` + "```"

// checkKilled checks that the tutorial killed Postern after some receipts, and before the last one.
func (w *walker) checkKilled(t *testing.T) {
	t.Helper()
	receipts, err := os.ReadFile(filepath.Join(w.folder, "acknowledged.txt"))
	if n := strings.Count(string(receipts), "\n"); err != nil || n == 0 || n == 10000 {
		t.Errorf("Postern was not killed between receipts: there are %d of 10000 (%v)", n, err)
	}
}

// checkPlayground checks what the tutorial did with the playground, and does the same with its
// shop. The reports name exactly the objects that the playground changed, deleted, and lost the
// webhooks of.
func (w *walker) checkPlayground(t *testing.T) {
	t.Helper()
	if err := w.walk(parsePage(shopSteps)); err != nil {
		t.Fatal(err)
	}
	done := w.playgroundDid()
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
		ids, repaired := w.drift(t, run)
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
	w.checkPlaygroundFaults(t)
	w.checkPlaygroundEnd(t)
}

// playgroundDid returns the ids of objects by what was done to them: "stripe change-silently",
// "stripe lost".
func (w *walker) playgroundDid() map[string][]string {
	id := regexp.MustCompile(`(?m)^  (\S+)$`)
	done := map[string][]string{}
	for _, o := range w.outputs {
		words := strings.Fields(o.command)
		if words[0] != "playground" {
			continue
		}
		said, lost, _ := strings.Cut(o.text, "lost webhooks of:\n")
		for name, text := range map[string]string{words[1] + " " + words[2]: said, words[1] + " lost": lost} {
			for _, m := range id.FindAllStringSubmatch(text, -1) {
				done[name] = append(done[name], m[1])
			}
		}
	}
	return done
}

// drift returns the ids of the objects by how they differed in a run, and whether each was
// repaired.
func (w *walker) drift(t *testing.T, run string) (ids map[string][]string, repaired bool) {
	t.Helper()
	var report struct {
		Differences []struct {
			ID     string `json:"object_id"`
			Kind   string
			Result string
		}
	}
	w.query(t, "drift report "+run, &report)
	ids, repaired = map[string][]string{}, true
	for _, d := range report.Differences {
		ids[d.Kind] = append(ids[d.Kind], d.ID)
		repaired = repaired && d.Result == "repaired"
	}
	return ids, repaired
}

// query runs a command of the playground's instance and decodes its output.
func (w *walker) query(t *testing.T, command string, into any) {
	t.Helper()
	out, err := w.run("postern --dir " + playgroundDir + " " + command + " -o json")
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// checkPlaygroundFaults checks that Postern received the two responses with 429, and waited for the
// delayed list.
func (w *walker) checkPlaygroundFaults(t *testing.T) {
	t.Helper()
	instance, err := config.ReadInstance(filepath.Join(w.folder, playgroundDir))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(instance.AdminURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
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
	w.query(t, "runs show 4", &run)
	if took := run.Ended.Sub(run.Started); took < time.Second {
		t.Errorf("the run over a list with a delay of 1 s took %s", took)
	}
}

// checkPlaygroundEnd ends the playground and checks that PostgreSQL has ended with it, and that its
// folder is removed.
func (w *walker) checkPlaygroundEnd(t *testing.T) {
	t.Helper()
	cluster := w.clusterDir(t, playgroundDir)
	lock, err := os.ReadFile(filepath.Join(cluster, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	if _, err := fmt.Sscan(string(lock), &pid); err != nil || syscall.Kill(pid, 0) != nil {
		t.Fatalf("PostgreSQL does not run as process %d (%v)", pid, err)
	}
	for _, terminal := range w.terminals {
		if terminal.command == "playground" {
			if err := terminal.interrupt(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("PostgreSQL still runs as process %d", pid)
	}
	for _, dir := range []string{filepath.Join(w.folder, playgroundDir), cluster} {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is there after the end", dir)
		}
	}
}
