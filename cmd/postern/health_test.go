package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHealth(t *testing.T) {
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
	ask("--url", daemon.URL+"/hangs", "--timeout", "50ms").want(t, 1, "", "no answer within 50ms")
	ask("--url", gone.URL+"/readyz").want(t, 1, "", "connection refused")
	ask("--url", "127.0.0.1:8081").want(t, 2, "", "is no URL to ask")
	ask("extra").want(t, 2, "", "takes no arguments")
}
