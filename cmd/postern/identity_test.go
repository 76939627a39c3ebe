package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// knownInstance is an instance file as a running instance writes it.
func knownInstance(t *testing.T, db *testkit.DB) *config.Instance {
	t.Helper()
	id, err := postgres.Identity(t.Context(), db.URL)
	if err != nil || id == "" {
		t.Fatalf("identity %q: %v", id, err)
	}
	return &config.Instance{DatabaseURL: db.URL, DatabaseID: id}
}

func TestCommands_addressLeadsToOtherDatabase_refuse(t *testing.T) {
	t.Parallel()
	b, other := setup(t), setup(t)
	other.append(t, "stripe", "evt_of_the_other", `{"id":"evt_of_the_other"}`)
	in := knownInstance(t, b.db)
	b.write(t, in)
	b.run(t, "events", "list").want(t, 0, "No events.", "")
	in.DatabaseURL = other.db.URL // as where a socket or a port belongs to another instance by now
	b.write(t, in)
	for _, command := range []string{"events list", "migrate status", "migrate up", "retry evt_of_the_other --yes --no-wait"} {
		r := b.run(t, strings.Fields(command)...)
		r.want(t, 1, "", "leads to another instance by now: start the one of this folder again")
		if strings.Contains(r.out, "evt_of_the_other") {
			t.Errorf("%s prints an event of the other instance: %s", command, r.out)
		}
	}
	if r := b.run(t, "doctor", "--dev", "--all"); r.status == 0 || !strings.Contains(r.out, "another database than expected") {
		t.Errorf("doctor: %+v", r)
	}
	if rows := other.db.Rows(t, `SELECT action FROM audit`); len(rows) > 0 {
		t.Errorf("the other instance was changed: %v", rows)
	}
}

func TestCommands_configNamesOtherDatabaseThanDir_refuse(t *testing.T) {
	t.Parallel()
	b, other := setup(t), setup(t)
	b.write(t, knownInstance(t, b.db))
	list := func(url string) result {
		file := filepath.Join(t.TempDir(), "postern.yaml")
		if err := os.WriteFile(file, []byte("database: {url: '"+url+"'}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return b.run(t, "--config", file, "events", "list")
	}
	list(b.db.URL+"&application_name=operator").want(t, 0, "No events.", "") // the same one by another address
	list(other.db.URL).want(t, 1, "", "names another database than the instance in "+b.dir)
}

func TestCommands_variableNamesOtherDatabaseThanDir_refuse(t *testing.T) {
	t.Parallel()
	b, other := setup(t), setup(t)
	b.write(t, knownInstance(t, b.db))
	list := func(dir string, env ...string) result {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var out, errs strings.Builder
		cmd := exec.CommandContext(ctx, os.Args[0], "--dir", dir, "events", "list")
		cmd.Env, cmd.Stdout, cmd.Stderr = append(serveEnvironment(), env...), &out, &errs
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
	}
	variable := "POSTERN_DATABASE_URL="
	list(b.dir, variable+b.db.URL).want(t, 0, "No events.", "")
	list(b.dir, variable+other.db.URL).want(t, 1, "", "POSTERN_DATABASE_URL names another database than the instance in "+b.dir)
	list(b.dir, "POSTERN_DATABSE_URL="+other.db.URL).want(t, 1, "", "POSTERN_DATABSE_URL: is no setting; did you mean POSTERN_DATABASE_URL?")
	list(t.TempDir(), variable+other.db.URL).want(t, 1, "", "for the database of POSTERN_DATABASE_URL leave out --dir")
}

func TestCommands_copiedFolder_refuse(t *testing.T) {
	t.Parallel()
	b, dir := setup(t), t.TempDir()
	text, err := os.ReadFile(filepath.Join(b.dir, config.InstanceFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, config.InstanceFile), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"events list", "send stripe invoice.paid", "top --once", "health", "stream status"} {
		execute(t.Context(), "", append([]string{"--dir", dir}, strings.Fields(command)...)...).want(t, 1, "",
			"tells how to reach the instance in "+b.dir)
	}
}

// A port is given to another process after the instance has stopped.
func TestCommands_portBelongsToOtherInstance_refuse(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
	in.IngestURL, in.AdminURL, in.ID = server.URL, server.URL, "one"
	b.write(t, in)
	const refused = "another process has its port"
	b.run(t, "send", "stripe", "invoice.paid").want(t, 1, "", refused)
	b.run(t, "health").want(t, 1, "", refused)
	if r := b.run(t, "top", "--once", "--every", "100ms"); !strings.Contains(r.out+r.errs, refused) {
		t.Errorf("top: %+v", r)
	}
	if posted > 0 {
		t.Error("a delivery was sent to the other instance")
	}
	in.ID = "other"
	b.write(t, in)
	b.run(t, "health").want(t, 0, "ok", "")
}

func TestHealth_withoutURL_asksInstanceOfDir(t *testing.T) {
	t.Parallel()
	b, asked := &testBundle{dir: t.TempDir()}, make(chan string, 1)
	b.run(t, "health").want(t, 1, "", "no dev instance in "+b.dir)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	t.Cleanup(server.Close)
	b.write(t, &config.Instance{AdminURL: server.URL})
	b.run(t, "health").want(t, 0, "ok", "")
	select {
	case path := <-asked:
		if path != "/readyz" {
			t.Errorf("asked for %s", path)
		}
	default:
		t.Error("the instance was not asked")
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
