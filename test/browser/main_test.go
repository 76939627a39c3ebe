// Package browser_test operates the console of a development instance with a browser.
package browser_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// instance is a development instance that all tests share.
var instance struct {
	dir, program string
	Ingest       string `json:"ingest_url"`
	Console      string `json:"admin_url"`
	Sources      map[string]struct{ Secret string }
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "postern-browser-")
	if err == nil {
		err = start(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "start postern dev:", err)
	} else {
		code = m.Run()
	}
	stop()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var process *exec.Cmd

// start builds postern, starts a development instance on free ports, and sends it some events.
func start(dir string) error {
	instance.dir, instance.program = filepath.Join(dir, "dev"), filepath.Join(dir, "postern")
	if err := os.Chmod(dir, 0o711); err != nil { // PostgreSQL may run as another account
		return err
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", instance.program, "./cmd/postern")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	process = exec.Command(instance.program, "dev", "--dir", instance.dir, "--listen", "127.0.0.1:0", "--admin",
		"127.0.0.1:0")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return err
	}
	began := time.Now()
	for range time.Tick(100 * time.Millisecond) {
		if content, err := os.ReadFile(filepath.Join(instance.dir, "instance.json")); err == nil {
			if err = json.Unmarshal(content, &instance); err == nil && isReady() {
				break
			}
		}
		if time.Since(began) > 2*time.Minute {
			written, _ := os.ReadFile(log.Name())
			return fmt.Errorf("not ready after two minutes: %s", written)
		}
	}
	return fill()
}

func isReady() bool {
	res, err := http.Get(instance.Console + "/readyz")
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

func stop() {
	if process != nil && process.Process != nil {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	}
}

// postern runs a command for the instance.
func postern(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, instance.program, append(args, "--dir", instance.dir)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("postern %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// hostile is markup that would run, load something or change the page, if it were not shown as
// text.
const hostile = `</pre></td></table><script>document.title="pwned"</script>` +
	`<img src=x onerror="document.title='pwned'"><iframe src="https://evil.example/"></iframe>` +
	`<svg onload="alert(1)"><button hx-get="/console/help" ` +
	`hx-trigger="load" hx-target="body">x</button><form action="https://evil.example"><b id="main">` + "\u202e"

// fill sends events, hostile ones among them, and forged deliveries.
func fill() error {
	text, _ := json.Marshal(hostile) // a text is always valid
	body := `{"id": ` + string(text) + `, "object": "event", "type": ` + string(text) + `, "created": 1790000000,
		"data": {"object": {"id": ` + string(text) + `, "object": ` + string(text) + `, "name": ` + string(text) + `}}}`
	for _, err := range []error{
		postern("send", "stripe", "customer.updated", "--count", "60", "--new-objects"),
		postern("send", "stripe", "invoice.paid", "--count", "3", "--shuffle"),
		postern("send", "shopify", "orders/create"),
		deliver(body, instance.Sources["stripe"].Secret),
		deliver(body, "a wrong secret"),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// deliver sends a delivery as Stripe does.
func deliver(body, secret string) error {
	req, err := http.NewRequest(http.MethodPost, instance.Ingest+"/webhooks/stripe", strings.NewReader(body))
	if err != nil {
		return err
	}
	at, mac := fmt.Sprint(time.Now().Unix()), hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(at + "." + body)) // a hash never returns an error
	req.Header.Set("Stripe-Signature", "t="+at+",v1="+hex.EncodeToString(mac.Sum(nil)))
	req.Header.Set("User-Agent", `<script>document.title="pwned"</script>`)
	res, err := http.DefaultClient.Do(req)
	if err == nil {
		_ = res.Body.Close()
	}
	return err
}
