package stream_test

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/postern-gateway/postern/internal/stream"
)

func TestCheckServer_belowFirstCleanReleaseOfItsLine_isRejected(t *testing.T) {
	t.Parallel()
	const newer = "a newer release of these lines"
	if err := stream.CheckServer(server.VERSION); err != nil {
		t.Errorf("the server inside this program: %v", err)
	}
	for version, want := range map[string]string{
		"1.4.1":       newer,
		"2.9.10":      newer,
		"2.10.29":     newer,
		"2.11.15":     newer, // GHSA-9983-vrx2-fg9c is fixed there, later notes are not
		"2.11.17":     newer,
		"2.12.0":      "install 2.12.12 or",
		"2.12.3":      "install 2.12.12 or", // CVE-2026-33222
		"2.12.6":      "install 2.12.12 or", // CVE-2026-58253
		"2.12.7":      "install 2.12.12 or", // CVE-2026-58250
		"2.12.8-fips": "install 2.12.12 or",
		"2.12.11":     "install 2.12.12 or", // CVE-2026-58210
		"2.12.12":     "",
		"2.12.15":     "",
		"2.13.0":      newer, // a line that was never released
		"2.14.0":      "install 2.14.3 or",
		"2.14.2":      "install 2.14.3 or",
		"2.14.3":      "",
		"2.14.9":      "",
		"2.15.0":      "",
		"2.15.0-RC.1": "",
		"2.15.2":      "",
		"2.16.0":      "",
		"3.0.0":       "",
		"unreadable":  `read the version of nats-server "unreadable"`,
	} {
		err := stream.CheckServer(version)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s is rejected: %v", version, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: error %v, want %q", version, err, want)
		case want != "" && version != "unreadable" && !strings.Contains(err.Error(), "published vulnerabilities (https://advisories.nats.io)"):
			t.Errorf("%s: error %v does not say why", version, err)
		}
	}
}

func TestConn_vulnerableServer_isRejectedAndLogged(t *testing.T) {
	t.Parallel()
	log := warnings{told: make(chan string, 10)}
	conn, err := stream.Connect(stream.Options{URL: pretend(t, "2.12.11"), Name: t.Name(), Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	select {
	case text := <-log.told:
		if !strings.Contains(text, "install 2.12.12") {
			t.Errorf("logged is %s", text)
		}
	case <-time.After(patience):
		t.Error("nothing is logged")
	}
	if err := conn.CheckServer(); err == nil || !strings.Contains(err.Error(), "nats-server 2.12.11 ") {
		t.Errorf("the check says %v", err)
	}
}

// pretend serves the part of the protocol that a client needs to connect, as a server of some version.
func pretend(t *testing.T, version string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"version\":%q,\"max_payload\":1048576}\r\n", version)
			for lines := bufio.NewScanner(c); lines.Scan(); {
				if bytes.HasPrefix(lines.Bytes(), []byte("PING")) {
					fmt.Fprint(c, "PONG\r\n")
				}
			}
			_ = c.Close()
		}
	}()
	return "nats://" + l.Addr().String()
}

func TestDocuments_nameTheCleanReleases(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"README.md", "docs/operations.md", "docs/decisions/0057-nats-without-published-vulnerabilities.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range stream.CleanReleases() {
			if !strings.Contains(string(text), r) {
				t.Errorf("%s does not name NATS %s", page, r)
			}
		}
	}
}
