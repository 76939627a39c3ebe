package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const serverTimeout = 10 * time.Second

// Server is a JetStream server inside the test process, with its store in the test's own directory.
type Server struct {
	// URL stays the same across Stop, Restart and Wipe.
	URL string

	dir        string
	port       int
	maxPayload int32
	nats       *server.Server
}

// JetStream starts a server on a free loopback port; it ends with the test.
func JetStream(t testing.TB) *Server {
	t.Helper()
	return JetStreamMaxPayload(t, 0)
}

// JetStreamMaxPayload is JetStream with a server that refuses messages above so many bytes; 0: the server's default.
func JetStreamMaxPayload(t testing.TB, bytes int32) *Server {
	t.Helper()
	s := &Server{dir: filepath.Join(t.TempDir(), "jetstream"), maxPayload: bytes}
	s.serve(t)
	return s
}

// JetStreamIn is JetStream with its store in a directory.
func JetStreamIn(t testing.TB, dir string) *Server {
	t.Helper()
	s := &Server{dir: filepath.Join(dir, "jetstream")}
	s.serve(t)
	return s
}

func (s *Server) serve(t testing.TB) {
	t.Helper()
	Eventually(t, serverTimeout, func() error { // another test may take the port in between
		s.port = firstPort + rand.IntN(ports)
		return s.try()
	})
	t.Cleanup(func() { s.Stop(t) })
}

// firstPort and ports are a range below the one that systems give to connections and to listeners on port 0, so that nobody
// gets a server's port by chance while it is stopped.
const firstPort, ports = 15_000, 15_000

// start waits for the server's port: a test that tried it for itself lets go of it at once.
func (s *Server) start(t testing.TB) {
	t.Helper()
	Eventually(t, serverTimeout, s.try)
}

func (s *Server) try() error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
	if err != nil { // the server itself would not say so
		return fmt.Errorf("try port of nats server: %w", err)
	}
	_ = l.Close() // nobody connected
	ns, err := server.NewServer(&server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: s.port, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: s.dir, JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 8 << 30,
		MaxPayload: s.maxPayload,
	})
	if err != nil {
		return fmt.Errorf("make nats server: %w", err)
	}
	ns.Start()
	if !ns.ReadyForConnections(serverTimeout) {
		ns.Shutdown()
		ns.WaitForShutdown()
		return fmt.Errorf("nats server not ready within %s", serverTimeout)
	}
	s.nats, s.URL = ns, ns.ClientURL()
	return nil
}

// Stop ends the server; what it stored stays for Restart.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.nats != nil {
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
		s.nats = nil
	}
}

// Restart stops the server if it runs and starts it again under the same URL, with what it had stored.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	s.start(t)
}

// Wipe restarts the server with an empty store: every stream and consumer is gone.
func (s *Server) Wipe(t testing.TB) {
	t.Helper()
	s.Stop(t)
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatalf("wipe nats store: %v", err)
	}
	s.start(t)
}

// FilesWith returns the files of the store that contain a text, relative to the store.
func (s *Server) FilesWith(t testing.TB, text string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreRemoved(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return ignoreRemoved(err)
		}
		if bytes.Contains(content, []byte(text)) {
			files = append(files, strings.TrimPrefix(path, s.dir))
		}
		return nil
	})
	if err != nil {
		t.Fatalf("read nats store: %v", err)
	}
	return files
}

// ignoreRemoved drops the error of a file that the server removed meanwhile.
func ignoreRemoved(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Save copies the store as it is now, with the server stopped meanwhile, for RollBack.
func (s *Server) Save(t testing.TB) (saved string) {
	t.Helper()
	saved = filepath.Join(t.TempDir(), "saved")
	s.Stop(t)
	s.copyStore(t, saved, s.dir)
	s.start(t)
	return saved
}

// RollBack restarts the server with a store that Save copied: what happened since never happened.
func (s *Server) RollBack(t testing.TB, saved string) {
	t.Helper()
	s.Stop(t)
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatalf("roll nats store back: %v", err)
	}
	s.copyStore(t, s.dir, saved)
	s.start(t)
}

// HalfDelete restarts the server without what it keeps of a stream beside its messages: it is not there, and its messages are, as where a deletion did not come to its end.
func (s *Server) HalfDelete(t testing.TB, stream string) {
	t.Helper()
	s.Stop(t)
	if err := os.Remove(filepath.Join(s.dir, "jetstream", "$G", "streams", stream, server.JetStreamMetaFile)); err != nil {
		t.Fatalf("half delete stream %s: %v", stream, err)
	}
	s.start(t)
}

func (s *Server) copyStore(t testing.TB, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatalf("copy nats store: %v", err)
	}
}
