package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestTokenCommands(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "token", "list").want(t, 0, "No tokens.", "")
	made := b.run(t, "token", "create", "--role", "reader", "--name", "grafana", "--expires", "90d")
	made.want(t, 0, "", "Token grafana, reader, holds until 20")
	if !regexp.MustCompile(`^postern_[A-Z2-7]{52}\n$`).MatchString(made.out) {
		t.Errorf("standard output is %q, want the token alone", made.out)
	}
	var shown struct{ Name, Token, Digest string }
	asJSON := b.run(t, "token", "create", "--role", "operator", "--name", "deploy", "-o", "json")
	if err := json.Unmarshal([]byte(asJSON.out), &shown); err != nil || shown.Name != "deploy" || len(shown.Token) != 60 {
		t.Errorf("%v: %s", err, asJSON.out)
	}
	list := b.run(t, "token", "list")
	list.want(t, 0, "deploy", "")
	if strings.Contains(list.out, strings.TrimSpace(made.out)) || strings.Contains(b.run(t, "token", "list", "-o", "json").out, shown.Token) {
		t.Error("a list shows a token")
	}
	b.run(t, "token", "revoke", "deploy").want(t, 0, "Token deploy is revoked since 20", "")
	b.run(t, "token", "list").want(t, 0, "revoked", "")
	b.run(t, "token", "revoke", "nobody").want(t, 3, "", "token nobody: not found")
	for want, args := range map[string][]string{
		"there is or was a token deploy": {"--role", "reader", "--name", "deploy"},
		"write reader or operator":       {"--role", "root", "--name", "x"},
		"write lower case":               {"--role", "reader"},
		"or how long from now":           {"--role", "reader", "--name", "x", "--expires", "soon"},
		"which is past":                  {"--role", "reader", "--name", "x", "--expires", "2020-01-01"},
	} {
		b.run(t, append([]string{"token", "create"}, args...)...).want(t, 2, "", want)
	}
}

// A token goes to whom it is meant for: over TLS, or not further than this machine.
func TestWhereATokenIsSent(t *testing.T) {
	t.Parallel()
	for url, sent := range map[string]bool{"https://postern.internal/metrics": true, "http://127.0.0.1:8081/": true, "http://[::1]:8081/": true, "http://localhost:8081/": true,
		"http://10.0.0.5:9090/metrics": false, "http://localhost.evil.example/": false} {
		req := httptest.NewRequest(http.MethodGet, url, nil)
		authorize(req, "postern_x")
		if got := req.Header.Get("Authorization") != ""; got != sent {
			t.Errorf("%s: sent %t, want %t", url, got, sent)
		}
	}
}

func TestAskingOverTLS(t *testing.T) {
	t.Parallel()
	daemon := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" && r.Header.Get("Authorization") != "Bearer postern_x" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte("# TYPE postern_build_info gauge\npostern_build_info 1\n")) // the asker checks it
	}))
	daemon.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	daemon.StartTLS()
	t.Cleanup(daemon.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	for path, text := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: daemon.Certificate().Raw}), token: []byte("postern_x\n")} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(args ...string) result { return execute(context.Background(), "", args...) }
	ask("health", "--url", daemon.URL+"/readyz", "--ca", ca).want(t, 0, "ok", "")
	ask("health", "--url", daemon.URL+"/readyz").want(t, 1, "", "certificate")
	ask("health", "--url", daemon.URL+"/readyz", "--ca", token).want(t, 2, "", "holds no certificate")
	ask("health", "--url", daemon.URL+"/readyz", "--ca", ca, "--cert", ca).want(t, 2, "", "--cert and --key go together")
	ask("top", "--once", "--every", "100ms", "--from", daemon.URL, "--ca", ca, "--token-file", token).want(t, 0, "", "")
	refused := ask("top", "--once", "--every", "100ms", "--from", daemon.URL, "--ca", ca)
	refused.want(t, 1, "give a token with --token-file or POSTERN_ADMIN_TOKEN", "no process answers")
}
