package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// knownInstance writes the instance file of a running instance.
func knownInstance(t *testing.T, db *testkit.DB) *config.Instance {
	t.Helper()
	id, err := postgres.Identity(t.Context(), db.URL)
	if err != nil || id == "" {
		t.Fatalf("identity %q: %v", id, err)
	}
	return &config.Instance{DatabaseURL: db.URL, DatabaseID: id}
}

func TestCommands_addressLeadsToOtherDatabase_fail(t *testing.T) {
	t.Parallel()
	b, other := setup(t), setup(t)
	other.append(t, "stripe", "evt_of_the_other", `{"id":"evt_of_the_other"}`)
	in := knownInstance(t, b.db)
	b.write(t, in)
	b.want(t, "events list", 0, "No events.", "")
	in.DatabaseURL = other.db.URL // the socket or the port belongs to another instance now
	b.write(t, in)
	for _, command := range []string{"events list", "migrate status", "migrate up",
		"retry evt_of_the_other --yes --no-wait"} {
		r := b.run(t, strings.Fields(command)...)
		r.want(t, 1, "", "belongs to another instance now: start the instance of this folder again")
		if strings.Contains(r.out, "evt_of_the_other") {
			t.Errorf("%s prints an event of the other instance: %s", command, r.out)
		}
	}
	if r := b.run(t, "doctor", "--dev", "--all"); r.status == 0 ||
		!strings.Contains(r.out, "a different database than expected") {
		t.Errorf("doctor: %+v", r)
	}
	if rows := other.db.QueryStrings(t, `SELECT action FROM audit`); len(rows) > 0 {
		t.Errorf("the other instance was changed: %v", rows)
	}
}

func TestCommands_configNamesOtherDatabaseThanDir_fail(t *testing.T) {
	t.Parallel()
	b, other := setup(t), setup(t)
	b.write(t, knownInstance(t, b.db))
	list := func(url string) result {
		return b.run(t, "--config", writeFile(t, "postern.yaml", "database: {url: '"+url+"'}\n"), "events", "list")
	}
	list(b.db.URL+"&application_name=operator").want(t, 0, "No events.", "") // the same database at another address
	list(other.db.URL).want(t, 1, "", "names another database than the instance in "+b.dir)
}

func TestCommands_copiedFolder_fail(t *testing.T) {
	t.Parallel()
	b, dir := setup(t), t.TempDir()
	text, err := os.ReadFile(filepath.Join(b.dir, config.InstanceFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, config.InstanceFile), text, 0o600)
	}
	testkit.Must(t, err)
	for _, command := range []string{"events list", "send stripe invoice.paid", "top --once", "health",
		"stream status"} {
		execute(t.Context(), "", append([]string{"--dir", dir}, strings.Fields(command)...)...).want(t, 1, "",
			"it belongs to the instance in "+b.dir)
	}
}

// Another process gets the port after the instance has stopped.
func TestCommands_portBelongsToOtherInstance_fail(t *testing.T) {
	t.Parallel()
	b, _ := sendSetup(t)
	posted := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posted++
		}
		w.Header().Set(config.InstanceHeader, "other")
		fmt.Fprintln(w, "# TYPE postern_build_info gauge\npostern_build_info 1")
	}))
	t.Cleanup(server.Close)
	in, err := config.ReadInstance(b.dir)
	testkit.Must(t, err)
	in.IngestURL, in.AdminURL, in.ID = server.URL, server.URL, "one"
	b.write(t, in)
	const refused = "another process uses its port"
	b.want(t, "send stripe invoice.paid", 1, "", refused)
	b.want(t, "health", 1, "", refused)
	if r := b.run(t, "top", "--once", "--every", "100ms"); !strings.Contains(r.out+r.errs, refused) {
		t.Errorf("top: %+v", r)
	}
	if posted > 0 {
		t.Error("a delivery was sent to the other instance")
	}
	in.ID = "other"
	b.write(t, in)
	b.want(t, "health", 0, "ok", "")
}

func TestHealth_withoutURL_requestsInstanceOfDir(t *testing.T) {
	t.Parallel()
	b, requested := &testBundle{dir: t.TempDir()}, make(chan string, 1)
	b.want(t, "health", 1, "", "no dev instance in "+b.dir)
	server := httptest.NewServer(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) { requested <- r.URL.Path }))
	t.Cleanup(server.Close)
	b.write(t, &config.Instance{AdminURL: server.URL})
	b.want(t, "health", 0, "ok", "")
	select {
	case path := <-requested:
		if path != "/readyz" {
			t.Errorf("requested %s", path)
		}
	default:
		t.Error("the instance received no request")
	}
}

func TestSameServers_byHostAndPort(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"nats://a:1", "nats://u:p@a:1", true},
		{"a", "tls://a:4222", true},
		{"nats://a:1,nats://b:1", "nats://b:1", true},
		{"nats://a:1", "nats://a:2", false},
	} {
		if got := sameServers(tc.a, tc.b); got != tc.same {
			t.Errorf("%s and %s: %v", tc.a, tc.b, got)
		}
	}
}

// runMain in the environment makes the test binary the command itself.
const runMain = "RUN_POSTERN_MAIN"

// serve tunes the garbage collector like the daemons, and starts and stops even if its log is not
// read.
func TestServe_stderrIsNotRead_keepsRunning(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), writeFile(t, "postern.yaml", "database: {url: '"+testkit.Database(t).URL+"'}\n"+
		"sources: {stripe: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}\n")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "serve", "--config", file, "--dir", dir, "--listen", "127.0.0.1:0",
		"--admin", "127.0.0.1:0")
	cmd.Env, cmd.Stderr = serveEnvironment(), fullPipe(t)
	testkit.Must(t, cmd.Start())
	defer cmd.Wait() // nothing while it is expected to run; afterwards it ends with ctx
	defer cancel()

	limit := fmt.Sprintf("\ngo_gc_gomemlimit_bytes %g\n", float64(config.Default().Ingest.QueueBytes+384<<20))
	testkit.Eventually(t, time.Minute, func() error { return metricsHold(t, dir, limit) })
	testkit.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("an orderly stop: %v (%v)", err, ctx.Err())
	}
}

// serveEnvironment is the environment without variables that configure the command or the
// collector.
func serveEnvironment() []string {
	env := []string{runMain + "=1"}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "GOGC=") && !strings.HasPrefix(v, "GOMEMLIMIT=") {
			env = append(env, v)
		}
	}
	return env
}

// fullPipe is the write end of a full pipe whose other end is not read.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	testkit.Must(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	testkit.Must(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := w.Write(make([]byte, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe takes four megabytes: %v", err)
	}
	return w
}

// metricsHold searches a line in the metrics of the instance in a folder.
func metricsHold(t *testing.T, dir, line string) error {
	t.Helper()
	in, err := config.ReadInstance(dir)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.AdminURL+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(page), line) {
		err = fmt.Errorf("no %q among the metrics", line)
	}
	return err
}

func TestHealth_statusOfDaemon_isExitStatus(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			fmt.Fprintln(w, "ready")
		case "/stopping":
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"title":"not ready","detail":"stopping"}`)
		case "/elsewhere":
			http.Redirect(w, r, "/readyz", http.StatusFound)
		case "/hangs":
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(daemon.Close)
	t.Cleanup(func() { close(hang) })
	gone := httptest.NewServer(nil)
	gone.Close()
	ask := func(args ...string) result {
		return execute(context.Background(), "", append([]string{"health"}, args...)...)
	}
	ask("--url", daemon.URL+"/readyz").want(t, 0, "ok", "")
	ask("--url", daemon.URL+"/stopping").want(t, 1, "", "503 Service Unavailable: not ready. stopping")
	ask("--url", daemon.URL+"/elsewhere").want(t, 1, "", "302 Found")
	ask("--url", daemon.URL+"/hangs", "--timeout", "50ms").want(t, 1, "", "no response within 50ms")
	ask("--url", gone.URL+"/readyz").want(t, 1, "", "connection refused")
	ask("--url", "127.0.0.1:8081").want(t, 2, "", "is not a valid URL")
	ask("extra").want(t, 2, "", "takes no arguments")
}

func TestToken_createListRevoke(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "token list", 0, "No tokens.", "")
	made := b.run(t, "token", "create", "--role", "reader", "--name", "grafana", "--expires", "90d")
	made.want(t, 0, "", "Token grafana, reader, is valid until 20")
	if !regexp.MustCompile(`^postern_[A-Z2-7]{52}\n$`).MatchString(made.out) {
		t.Errorf("standard output is %q, want the token alone", made.out)
	}
	var shown struct{ Name, Token, Digest string }
	asJSON := b.run(t, "token", "create", "--role", "operator", "--name", "deploy", "-o", "json")
	if err := json.Unmarshal([]byte(asJSON.out), &shown); err != nil || shown.Name != "deploy" ||
		len(shown.Token) != 60 {
		t.Errorf("%v: %s", err, asJSON.out)
	}
	list := b.want(t, "token list", 0, "deploy", "")
	if strings.Contains(list.out, strings.TrimSpace(made.out)) ||
		strings.Contains(b.run(t, "token", "list", "-o", "json").out, shown.Token) {
		t.Error("a list shows a token")
	}
	b.want(t, "token revoke deploy", 0, "Token deploy was revoked at 20", "")
	b.want(t, "token list", 0, "revoked", "")
	b.want(t, "token revoke nobody", 3, "", "token nobody: not found")
	for want, args := range map[string][]string{
		"a token deploy exists or existed": {"--role", "reader", "--name", "deploy"},
		"write reader, approver, operator": {"--role", "root", "--name", "x"},
		"write lower case":                 {"--role", "reader"},
		"or how long from now":             {"--role", "reader", "--name", "x", "--expires", "soon"},
		"which is in the past":             {"--role", "reader", "--name", "x", "--expires", "2020-01-01"},
	} {
		b.run(t, append([]string{"token", "create"}, args...)...).want(t, 2, "", want)
	}
}

// A token is sent only over TLS or on this machine.
func TestAuthorize_plainHTTPToOtherHost_sendsNoToken(t *testing.T) {
	t.Parallel()
	for url, sent := range map[string]bool{"https://postern.internal/metrics": true,
		"http://127.0.0.1:8081/": true,
		"http://[::1]:8081/":     true, "http://localhost:8081/": true,
		"http://10.0.0.5:9090/metrics": false, "http://localhost.evil.example/": false} {
		req := httptest.NewRequest(http.MethodGet, url, nil)
		authorize(req, "postern_x")
		if got := req.Header.Get("Authorization") != ""; got != sent {
			t.Errorf("%s: sent %t, want %t", url, got, sent)
		}
	}
}

func TestClientFlags_tls_verifiesServerAndSendsCertificate(t *testing.T) {
	t.Parallel()
	daemon := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" && r.Header.Get("Authorization") != "Bearer postern_x" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte("# TYPE postern_build_info gauge\npostern_build_info 1\n")) // the client verifies it
	}))
	daemon.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	daemon.StartTLS()
	t.Cleanup(daemon.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	for path, text := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: daemon.Certificate().Raw}), token: []byte("postern_x\n")} {
		testkit.Must(t, os.WriteFile(path, text, 0o600))
	}
	ask := func(args ...string) result { return execute(context.Background(), "", args...) }
	ask("health", "--url", daemon.URL+"/readyz", "--ca", ca).want(t, 0, "ok", "")
	ask("health", "--url", daemon.URL+"/readyz").want(t, 1, "", "certificate")
	ask("health", "--url", daemon.URL+"/readyz", "--ca", token).want(t, 2, "", "holds no certificate")
	ask("health", "--url", daemon.URL+"/readyz", "--ca", ca, "--cert", ca).want(t, 2, "",
		"--cert and --key go together")
	ask("top", "--once", "--every", "100ms", "--from", daemon.URL, "--ca", ca, "--token-file", token).want(t, 0, "", "")
	refused := ask("top", "--once", "--every", "100ms", "--from", daemon.URL, "--ca", ca)
	refused.want(t, 1, "give a token with --token-file or POSTERN_ADMIN_TOKEN", "no process responds")
}
