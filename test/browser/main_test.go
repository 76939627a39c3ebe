// Package browser_test operates the console of two development instances with a browser.
package browser_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
)

// running is a development instance that tests share.
type running struct {
	dir, config string
	process     *exec.Cmd
	ended       chan struct{}
	Ingest      string `json:"ingest_url"`
	Console     string `json:"admin_url"`
	Database    string `json:"database_url"`
}

// guarded requires tokens and separate approvals. instance requires no token, and reaches
// PostgreSQL through a link that can be cut.
var (
	guarded, instance running
	program           string
	cluster           *postgres.Cluster
	database          *link
	mails             sink
)

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
	closeBrowser()
	instance.stop()
	guarded.stop()
	if cluster != nil {
		_ = cluster.Stop(context.Background())
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// start builds postern, starts two instances on free ports, and sends them some events.
func start(dir string) error {
	if err := os.Chmod(dir, 0o711); err != nil { // PostgreSQL may run as another account
		return err
	}
	program = filepath.Join(dir, "postern")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./cmd/postern")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var err error
	if cluster, err = postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: filepath.Join(dir, "postgres"),
		Fast: true}); err != nil {
		return err
	}
	guarded.Database = cluster.URL()
	at, err := url.Parse(guarded.Database)
	if err == nil {
		database, err = newLink("unix", filepath.Join(at.Query().Get("host"), ".s.PGSQL.5432"))
	}
	if err == nil {
		_, err = guarded.sql("CREATE DATABASE second")
	}
	if err != nil {
		return err
	}
	// without a token the guarded instance does not start
	for _, command := range []string{"migrate up", "token create --role reader --name first"} {
		cmd := exec.CommandContext(ctx, program, strings.Fields(command)...)
		cmd.Env = append(os.Environ(), "POSTERN_DATABASE_URL="+guarded.Database)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	started := make(chan error, 3)
	go func() { started <- startBrowser() }()
	go func() {
		started <- guarded.start(filepath.Join(dir, "guarded"), fmt.Sprintf(guardedConfig, mails.start()),
			guarded.Database)
	}()
	go func() {
		started <- instance.start(filepath.Join(dir, "instance"), fmt.Sprintf(instanceConfig, billing().URL),
			fmt.Sprintf("postgres://postgres@%s/second?sslmode=disable", database.Addr()))
	}()
	if err := errors.Join(<-started, <-started, <-started); err != nil {
		return err
	}
	return fill()
}

// start starts the instance, and waits until it is ready.
func (i *running) start(dir, config, database string) error {
	i.dir, i.config = dir, dir+".yaml"
	log, err := os.Create(dir + ".log")
	if err == nil {
		err = os.WriteFile(i.config, []byte(config), 0o600)
	}
	if err != nil {
		return err
	}
	i.process = exec.Command(program, "dev", "--config", i.config, "--dir", dir, "--database", database, "--listen",
		"127.0.0.1:0", "--admin", "127.0.0.1:0")
	i.process.Stdout, i.process.Stderr = log, log
	if err := i.process.Start(); err != nil {
		return err
	}
	i.ended = make(chan struct{})
	go func() {
		_ = i.process.Wait()
		close(i.ended)
	}()
	if until(2*time.Minute, func() bool {
		select {
		case <-i.ended:
			return true
		default:
		}
		content, err := os.ReadFile(filepath.Join(dir, "instance.json"))
		return err == nil && json.Unmarshal(content, i) == nil && i.isReady()
	}) && i.isReady() {
		return nil
	}
	written, _ := os.ReadFile(log.Name())
	return fmt.Errorf("%s is not ready: %s", dir, written)
}

// until reports whether something becomes true in a time.
func until(limit time.Duration, is func() bool) bool {
	began := time.Now()
	for range time.Tick(50 * time.Millisecond) {
		if is() {
			return true
		}
		if time.Since(began) > limit {
			return false
		}
	}
	return false
}

func (i *running) isReady() bool {
	res, err := http.Get(i.Console + "/readyz")
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

func (i *running) stop() {
	if i.ended != nil {
		_ = i.process.Process.Signal(syscall.SIGTERM)
		<-i.ended
	}
}

// postern runs a command for the instance, and returns its output.
func (i *running) postern(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(args, "--dir", i.dir)...)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("postern %s: %w: %s", strings.Join(args, " "), err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// sql executes a statement as the owner of the database, and returns the first value.
func (i *running) sql(statement string) (string, error) {
	out, err := exec.Command("psql", i.Database, "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", statement).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", statement, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// reconfigure replaces texts of the configuration, and waits until the instance has read it.
func (i *running) reconfigure(t *testing.T, oldAndNew ...string) {
	t.Helper()
	content, err := os.ReadFile(i.config)
	must(t, err)
	edited := strings.NewReplacer(oldAndNew...).Replace(string(content))
	if edited == string(content) {
		t.Fatalf("the configuration has none of %q", oldAndNew)
	}
	before := i.reloads(t)
	must(t, os.WriteFile(i.config, []byte(edited), 0o600))
	must(t, i.process.Process.Signal(syscall.SIGHUP))
	if !until(20*time.Second, func() bool { return i.reloads(t) != before }) {
		t.Fatalf("the configuration was not read again:\n%s", edited)
	}
}

// reloads returns the line of the metric that counts successful reloads.
func (i *running) reloads(t *testing.T) string {
	for line := range strings.Lines(get(t, i.Console+"/metrics", "")) {
		if strings.HasPrefix(line, "postern_config_reloads_total") && strings.Contains(line, `"ok"`) {
			return line
		}
	}
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hostile is markup that would run, load something or change the page, if it were not shown as
// text.
const hostile = `</pre></td></table><script>document.title="pwned"</script>` +
	`<img src=x onerror="document.title='pwned'"><iframe src="https://evil.example/"></iframe>` +
	`<svg onload="alert(1)"><button hx-get="/console/help" ` +
	`hx-trigger="load" hx-target="body">x</button><form action="https://evil.example"><b id="main">` + "\u202e"

// secrets are of the sources. No page shows them.
const (
	stripeSecret = "whsec_demo_for_postern_dev"
	firstSecret  = "whsec_first_for_postern_dev"
	secondSecret = "whsec_second_for_postern_dev"
	acmeSecret   = "acme_signing_for_postern_dev"
	wrongSecret  = "a wrong secret"
)

// rotatedDeliveries is how many deliveries are signed with a secret that the source does not have.
const rotatedDeliveries = 12

// fill sends events, hostile ones among them, and forged deliveries.
func fill() error {
	text, _ := json.Marshal(hostile) // a text is always valid
	body := `{"id": ` + string(text) + `, "object": "event", "type": ` + string(text) + `, "created": 1790000000,
		"data": {"object": {"id": ` + string(text) + `, "object": ` + string(text) + `, "name": ` + string(text) + `}}}`
	for _, send := range []string{"stripe customer.updated --count 60 --new-objects --source stripe",
		"stripe invoice.paid --count 3 --shuffle --source stripe", "shopify orders/create"} {
		if _, err := instance.postern(append([]string{"send"}, strings.Fields(send)...)...); err != nil {
			return err
		}
	}
	for n := range rotatedDeliveries {
		if status, err := instance.deliver("rotated", secondSecret, stripeEvent(fmt.Sprint("evt_rotated_", n),
			"customer.updated", fmt.Sprint("cus_rotated_", n), time.Now())); err != nil || status != 401 {
			return fmt.Errorf("a delivery with an unknown secret gets %d: %w", status, err)
		}
	}
	for n := range 4 {
		for _, secret := range []string{wrongSecret, stripeSecret} {
			if _, err := instance.deliver("stripe", secret, stripeEvent(fmt.Sprintf("evt_%d_%.5s", n, secret),
				"customer.created", "cus_attacked", time.Now())); err != nil {
				return err
			}
		}
	}
	_, err := instance.deliver("stripe", stripeSecret, body)
	if err == nil {
		_, err = instance.deliver("stripe", wrongSecret, body)
	}
	return err
}

// stripeEvent is an event about an object, whose state has the time of the event.
func stripeEvent(key, eventType, object string, at time.Time) string {
	kind, _, _ := strings.Cut(eventType, ".")
	return fmt.Sprintf(`{"id": %q, "object": "event", "type": %q, "created": %d, "data": {"object": {"id": %q,
		"object": %q, "description": "at %[3]d", "created": 1790000000, "status": "paid", "amount_paid": 1250,
		"customer_email": "ada@postern.example"}}}`, key, eventType, at.Unix(), object, kind)
}

// deliver sends a signed delivery, and returns the status of the response.
func (i *running) deliver(source, secret, body string) (int, error) {
	req, err := http.NewRequest(http.MethodPost, i.Ingest+"/webhooks/"+source, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	at, mac := fmt.Sprint(time.Now().Unix()), hmac.New(sha256.New, []byte(secret))
	if source == "acme" {
		_, _ = mac.Write([]byte(body)) // a hash never returns an error
		req.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	} else {
		_, _ = mac.Write([]byte(at + "." + body))
		req.Header.Set("Stripe-Signature", "t="+at+",v1="+hex.EncodeToString(mac.Sum(nil)))
	}
	req.Header.Set("User-Agent", `<script>document.title="pwned"</script>`)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// accept sends deliveries that the source accepts.
func (i *running) accept(t *testing.T, source, secret string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		status, err := i.deliver(source, secret, body)
		must(t, err)
		if status/100 != 2 {
			t.Fatalf("%s responds %d to %s", source, status, body)
		}
	}
}

// sink is the destination of effects. It counts requests by body.
type sink struct {
	mu     sync.Mutex
	bodies []string
}

// start returns the address of the sink, which runs as long as the process.
func (s *sink) start() string { return newServer(s) }

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies = append(s.bodies, string(body))
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id": "mail_%d"}`, len(s.bodies))
}

// received returns the bodies that contain a text.
func (s *sink) received(text string) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, body := range s.bodies {
		if strings.Contains(body, text) {
			found = append(found, body)
		}
	}
	return found
}
