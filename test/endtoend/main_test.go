// Package endtoend runs the programs as an operator starts them: real processes, a real PostgreSQL,
// a real JetStream.
package endtoend_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// build returns the folder of the programs.
func build(t *testing.T) string {
	t.Helper()
	dir, err := testkit.Programs(append(site.Daemons(), site.Tools()...)...)
	testkit.Must(t, err)
	return dir
}

// settings returns a configuration of both daemons with a separate database and JetStream, and free
// ports.
func settings(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`
database: {url: %q}
nats: {url: %q}
ingest: {listen: "127.0.0.1:0", drain_delay: 1ms}
admin: {listen: "127.0.0.1:0"}
log: {format: json}
sources:
  stripe: {provider: stripe, secrets: [{name: main, value: whsec_of_the_end_to_end_test}]}
  shop: {provider: shopify, account: x.myshopify.com, secrets: [{name: main, value: secret_of_the_test}]}
`, testkit.Database(t).URL, testkit.JetStream(t).URL)
}

const (
	readyWithin = 2 * time.Minute
	endWithin   = time.Minute
)

// process is a running program.
type process struct {
	name string
	cmd  *exec.Cmd
	// ready receives the addresses on which the program listens.
	ready chan addresses
	// ended is closed after the process has ended. err is set before.
	ended chan struct{}
	err   error

	mu  sync.Mutex
	log strings.Builder
}

type addresses struct{ Ingest, Admin string }

// start runs a program and waits until it is ready. The program is killed at the end of the test at
// the latest.
func start(t *testing.T, program string, args ...string) (*process, addresses) {
	t.Helper()
	p := &process{name: filepath.Base(program), cmd: exec.Command(program, args...), ready: make(chan addresses, 1),
		ended: make(chan struct{})}
	p.cmd.Env = environment()
	stderr, err := p.cmd.StderrPipe()
	testkit.Must(t, err)
	stdout, err := p.cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, p.cmd.Start())
	var readers sync.WaitGroup
	readers.Go(func() { p.read(stderr) })
	readers.Go(func() { p.read(stdout) })
	go func() {
		readers.Wait()
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s log:\n%s", p.name, p.output())
		}
	})
	select {
	case at := <-p.ready:
		return p, at
	case <-p.ended:
		t.Fatalf("%s ended before it was ready: %v\n%s", p.name, p.err, p.output())
	case <-time.After(readyWithin):
		t.Fatalf("%s not ready within %s\n%s", p.name, readyWithin, p.output())
	}
	return nil, addresses{}
}

// environment returns the environment without variables that configure Postern, PostgreSQL or
// tracing.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}

// read stores the output and waits for the line that says that the program is ready.
func (p *process) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var line struct {
			Msg, Level string
			addresses
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
			p.ready <- line.addresses
		}
		if line.Level != "INFO" { // lines per request and batch would hide the others
			p.mu.Lock()
			fmt.Fprintln(&p.log, lines.Text())
			p.mu.Unlock()
		}
		if lines.Text() == "Postern is ready." { // the output of dev; the addresses are in its instance file
			p.ready <- addresses{}
		}
	}
}

// output returns the end of the program's output.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	const most = 4000
	text := p.log.String()
	return text[max(0, len(text)-most):]
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // the process may have ended already
	<-p.ended
}

// interrupt stops the process as Ctrl-C does. The process must end with status 0.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	p.end(t, syscall.SIGINT)
}

// end sends a signal that stops the process, which must end with status 0. The process itself
// limits the time: if its stop takes too long, it ends with another status. endWithin is longer,
// because other tests may slow down both.
func (p *process) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("send %s to %s: %v", signal, p.name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(endWithin):
		t.Fatalf("%s did not end within %s\n%s", p.name, endWithin, p.output())
	}
	if p.err != nil {
		t.Errorf("%s ended with %v, want status 0\n%s", p.name, p.err, p.output())
	}
}
