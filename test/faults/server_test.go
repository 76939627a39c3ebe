package faults_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// server is a PostgreSQL of the test's own, which may be stopped and killed.
type server struct {
	dir     string
	running *postgres.Cluster
}

func startServer(t *testing.T) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "postern-faults-")
	if err != nil {
		t.Fatal(err)
	}
	p := &server{dir: filepath.Join(dir, "pg")}
	t.Cleanup(func() {
		if p.running != nil {
			if err := p.running.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil { // where PostgreSQL runs as another account, that one must be able to enter
		t.Fatal(err)
	}
	p.start(t)
	return p
}

// start starts the server on the data that it has. What a killed one left behind may take it a while to end.
func (p *server) start(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		p.running, err = postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: p.dir, Fast: true})
		return err
	})
}

func (p *server) stop(t *testing.T) {
	t.Helper()
	if err := p.running.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// kill ends the server with no chance to do anything more.
func (p *server) kill(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	<-p.running.Done()
	p.stop(t)
}

// site is build on this server, with a login that needs its password.
func (p *server) site(t *testing.T) *site {
	t.Helper()
	address := p.running.URL()
	if _, err := postgres.Migrate(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: address, MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &site{db: &testkit.DB{URL: address, Pool: pool}, nats: testkit.JetStream(t), login: "faults"}
	s.db.Exec(t, `CREATE ROLE faults LOGIN PASSWORD 'right' IN ROLE postern_gateway, postern_processor, postern_maintenance, postern_operator`)
	if err := os.WriteFile(filepath.Join(p.dir, "data", "pg_hba.conf"), []byte("local all faults scram-sha-256\nlocal all all trust\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.db.Exec(t, `SELECT pg_reload_conf()`)
	return s.on(t, as(t, address, s.login)+"&password=right")
}

// A server that is stopped, killed, or comes and goes, and one that takes another password: each time deliveries are acknowledged, and in the end all is there once.
func TestServer(t *testing.T) {
	t.Parallel()
	p := startServer(t)
	s := p.site(t)
	s.start(t, nil)
	l := s.send(t)
	l.await(t, 20, "stored", stored)
	for _, fault := range []struct {
		name         string
		begin, ended func()
	}{
		{"stopped", func() { p.stop(t) }, func() { p.start(t) }},
		{"killed", func() { p.kill(t) }, func() { p.start(t) }},
		{"comes and goes", func() {
			for range 3 {
				p.kill(t)
				p.start(t)
			}
			p.kill(t)
		}, func() { p.start(t) }},
		{"another password", func() {
			s.db.Exec(t, `ALTER ROLE faults PASSWORD 'other'`)
			s.terminate(t)
		}, func() { s.db.Exec(t, `ALTER ROLE faults PASSWORD 'right'`) }},
	} {
		t.Log(fault.name)
		fault.begin()
		l.await(t, 20, "spooled", spooled)
		fault.ended()
		l.await(t, 10, "stored again", storedKept)
	}
	l.stop()
	s.settled(t)
	l.check(t, s, false)
	if !strings.Contains(s.log.String(), "28P01") {
		t.Error("nobody was told of the password")
	}
}
