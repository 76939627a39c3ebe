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

// Server is a JetStream server inside the test process.
type Server struct {
	// URL stays the same across Stop, Restart and Wipe.
	URL string

	dir        string
	port       int
	maxPayload int32
	nats       *server.Server
}

// JetStream starts a server on a free loopback port. It stops with the test.
func JetStream(t testing.TB) *Server {
	t.Helper()
	return JetStreamMaxPayload(t, 0)
}

// JetStreamMaxPayload starts a server that rejects larger messages than the given number of bytes.
// Zero means the default of the server.
func JetStreamMaxPayload(t testing.TB, bytes int32) *Server {
	t.Helper()
	s := &Server{dir: filepath.Join(scratch(t), "jetstream"), maxPayload: bytes}
	s.serve(t)
	return s
}

// scratch returns a directory that is removed with the test. Writes of a store to a disk cost a
// fifth of the processor time of its tests.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(ScratchDir(), clusterPrefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the next run of tests removes what is left
	return dir
}

// JetStreamIn starts a server with its store in the given directory.
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
		return s.tryStart()
	})
	t.Cleanup(func() { s.Stop(t) })
}

// firstPort and ports are a range below the ephemeral ports of the system. No other program gets
// the port of a server by chance while the server is stopped.
const firstPort, ports = 15_000, 15_000

// start waits until the port of the server is free. Another test that tries the port releases it at
// once.
func (s *Server) start(t testing.TB) {
	t.Helper()
	Eventually(t, serverTimeout, s.tryStart)
}

func (s *Server) tryStart() error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
	if err != nil { // the NATS server does not report a port that is in use
		return fmt.Errorf("try port of nats server: %w", err)
	}
	_ = l.Close() // no client has connected
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

// Stop stops the server. The store stays for Restart.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.nats != nil {
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
		s.nats = nil
	}
}

// Restart stops the server if it runs and starts it again with the same URL and store.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	s.start(t)
}

// Wipe restarts the server with an empty store: all streams and consumers are gone.
func (s *Server) Wipe(t testing.TB) {
	t.Helper()
	s.Stop(t)
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatalf("wipe nats store: %v", err)
	}
	s.start(t)
}

// FilesContaining returns the files of the store that contain a text, relative to the store.
func (s *Server) FilesContaining(t testing.TB, text string) (files []string) {
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

// ignoreRemoved drops the error of a file that the server has removed in the meantime.
func ignoreRemoved(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// SaveStore stops the server, copies its store for RestoreStore and starts it again.
func (s *Server) SaveStore(t testing.TB) (saved string) {
	t.Helper()
	saved = filepath.Join(scratch(t), "saved")
	s.Stop(t)
	s.copyStore(t, saved, s.dir)
	s.start(t)
	return saved
}

// RestoreStore restarts the server with a store that SaveStore has copied. Later changes are lost.
func (s *Server) RestoreStore(t testing.TB, saved string) {
	t.Helper()
	s.Stop(t)
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatalf("restore nats store: %v", err)
	}
	s.copyStore(t, s.dir, saved)
	s.start(t)
}

// DeleteStreamMetadata restarts the server without the metadata file of a stream. The messages of
// the stream remain, as after an interrupted deletion.
func (s *Server) DeleteStreamMetadata(t testing.TB, stream string) {
	t.Helper()
	s.Stop(t)
	if err := os.Remove(filepath.Join(s.dir, "jetstream", "$G", "streams", stream,
		server.JetStreamMetaFile)); err != nil {
		t.Fatalf("delete the metadata of stream %s: %v", stream, err)
	}
	s.start(t)
}

func (s *Server) copyStore(t testing.TB, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatalf("copy nats store: %v", err)
	}
}
