package endtoend_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// reloads is how often a process says it has reloaded its sources.
func reloads(t *testing.T, admin string) string {
	t.Helper()
	res, err := http.Get("http://" + strings.TrimPrefix(admin, "http://") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(regexp.MustCompile(`(?m)^postern_config_reloads_total\{result="ok"\}.*$`).Find(page))
}

func (p *process) hangup(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// Every program that takes deliveries or applies them reloads its sources at a SIGHUP, and by itself when its file has changed,
// and stops in order afterwards.
func TestHangupReloads(t *testing.T) {
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
		"dev":                 {program: "postern", args: []string{"dev"}},
		"gateway under nohup": {program: "gateway", ignored: true},
		"serve under nohup":   {program: "postern", args: []string{"serve"}, ignored: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, dir := filepath.Join(t.TempDir(), "postern.yaml"), t.TempDir()
			text := fmt.Sprintf(settings, testkit.Database(t).URL, testkit.JetStream(t).URL, mostRejections, stripeSecret, shop, shopifySecret)
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
				if err != nil {
					t.Fatal(err)
				}
				at.Admin = in.AdminURL
			}
			p.hangup(t)
			if c.ignored {
				p.hangup(t)
			} else {
				testkit.Eventually(t, time.Minute, func() error { return counted(t, at.Admin, 1) })
			}
			put(t, file, strings.Replace(text, "  shop:", "  shop2:", 1))
			want := 2
			if c.ignored {
				want = 1
			}
			testkit.Eventually(t, time.Minute, func() error { return counted(t, at.Admin, want) })
			if in, err := config.ReadInstance(dir); c.program == "postern" && (err != nil || in.Sources["shop2"].Provider != "shopify") {
				t.Errorf("the instance file has not the new source: %+v, %v", in, err)
			}
			p.interrupt(t)
		})
	}
}

func counted(t *testing.T, admin string, want int) error {
	t.Helper()
	if got := reloads(t, admin); got != fmt.Sprintf(`postern_config_reloads_total{result="ok"} %d`, want) {
		return fmt.Errorf("%s, want %d", got, want)
	}
	return nil
}

// put writes a file in one step.
func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".next", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}
