package deploy_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/testkit"
)

const (
	readyWithin   = 60 * time.Second
	endWithin     = 30 * time.Second
	appliedWithin = 60 * time.Second
	// secret signs the deliveries of these tests.
	secret = "whsec_of_the_tests_of_deploy"
)

// settings are those of both daemons in the image: every address free.
const settings = `
database: {url: %q}
nats: {url: %q, tls: {ca: %[3]s/ca.crt, cert: %[3]s/%[4]s.crt, key: %[3]s/%[4]s.key}}
ingest: {listen: "127.0.0.1:0", drain_delay: 1ms}
admin: {listen: "127.0.0.1:0"}
log: {format: json}
sources:
  stripe: {provider: stripe, secrets: [{name: main, file: %[3]s/stripe.secret}]}
`

// checkWorks runs the daemons out of the unpacked image. Where the test is root, they see nothing
// else and run as the image's account; elsewhere they are started where they lie.
func (img *image) checkWorks(t *testing.T) {
	db, certs := testkit.Database(t), certificates(t)
	// The test's PostgreSQL has a socket only, out of reach from inside.
	proxy := testkit.Proxy(t, db.URL)
	database, nats := proxy.URL, composeNATS(t, certs)
	folder := "/etc/postern"
	if os.Geteuid() != 0 {
		folder = img.path("etc/postern")
	}
	write(t, img.path("etc/postern/stripe.secret"), secret+"\n")
	write(t, img.path("etc/postern/ca.crt"), read(t, filepath.Join(certs, "ca.crt")))
	// As compose.yaml says it.
	spool := readCompose(t).Services["gateway-1"].Environment[spoolVariable]
	env := []string{spoolVariable + "=" + spool}
	if os.Geteuid() != 0 { // below the folder of the tests, which is /tmp for most
		env = []string{spoolVariable + "=" + img.path(spool), "POSTERN_INGEST_SPOOL_UNSAFE_DIR=true"}
	}
	daemon := func(name string) *process {
		for _, file := range []string{name + ".crt", name + ".key"} {
			write(t, img.path("etc/postern/"+file), read(t, filepath.Join(certs, file)))
		}
		write(t, img.path("etc/postern/"+name+".yaml"), fmt.Sprintf(settings, database, nats, folder, name))
		cmd := img.command(name, "--config", folder+"/"+name+".yaml")
		cmd.Env = append(cmd.Environ(), env...)
		return start(t, cmd)
	}
	gateway, processor := daemon("gateway"), daemon("processor")
	img.ready(t, gateway)
	img.ready(t, processor)
	samples := []int{0, 1, 4, 7, 8, 11, 15, 17} // each of an object of its own
	sent := 1
	// as what a busy machine takes 0.75 s to append
	for answer := deliver(t, gateway, samples[0]); strings.Contains(answer, `"spooled"`); answer = deliver(t, gateway,
		samples[sent-1]) {
		if sent++; sent == len(samples) {
			t.Fatalf("%d deliveries were answered so: %s while PostgreSQL was there", sent-1, answer)
		}
	}
	applied(t, db.Pool, sent)

	proxy.Cut()
	if answer := deliver(t, gateway, samples[sent]); !strings.Contains(answer, `"spooled":true`) {
		t.Errorf("answered %s while PostgreSQL was away", answer)
	}
	gateway.end(t)
	gateway = daemon("gateway") // without PostgreSQL, with the spool of the one before
	img.ready(t, gateway)
	proxy.Restore()
	applied(t, db.Pool, sent+1)
	gateway.end(t)
	processor.end(t)
}

// ready waits until a daemon says by the command of the health checks that it is ready.
func (img *image) ready(t *testing.T, p *process) {
	t.Helper()
	testkit.Eventually(t, readyWithin, func() error {
		out, err := img.command("postern", "health", "--timeout", "30s", "--url", "http://"+p.at.Admin+
			"/readyz").CombinedOutput()
		if err != nil {
			return fmt.Errorf("health of %s: %w: %s", p.cmd.Path, err, out)
		}
		return nil
	})
}

// command is a program of the image.
func (img *image) command(program string, args ...string) *exec.Cmd {
	if os.Geteuid() != 0 {
		return exec.Command(img.path("bin/"+program), args...)
	}
	cmd := exec.Command("/bin/"+program, args...)
	cmd.Dir, cmd.Env = "/var/lib/postern", []string{"PATH=/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: img.rootfs, Credential: &syscall.Credential{Uid: account,
		Gid: account}}
	return cmd
}

// process is a running daemon.
type process struct {
	cmd *exec.Cmd
	at  addresses
	// ended is closed when the process has; err is set by then.
	ended chan struct{}
	err   error

	mu  sync.Mutex
	log strings.Builder
}

type addresses struct{ Ingest, Admin string }

// start starts a daemon and waits until it says that it is ready; at the latest it is killed with
// the test.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	out, in, err := os.Pipe()
	must(t, err)
	cmd.Stderr, cmd.Stdout = in, in
	err = cmd.Start()
	_ = in.Close() // the process has its own
	if err != nil {
		_ = out.Close()
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	ready := make(chan addresses, 1)
	go func() {
		defer close(p.ended)
		p.read(out, ready)
		p.err = cmd.Wait()
		_ = out.Close()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-p.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", cmd.Path, p.said())
		}
	})
	select {
	case p.at = <-ready:
	case <-p.ended:
		t.Fatalf("%s ended before it was ready: %v\n%s", cmd.Path, p.err, p.said())
	case <-time.After(readyWithin):
		t.Fatalf("%s not ready within %s\n%s", cmd.Path, readyWithin, p.said())
	}
	return p
}

func (p *process) read(out io.Reader, ready chan<- addresses) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line struct {
			Msg string
			addresses
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
			ready <- line.addresses
		}
		p.mu.Lock()
		fmt.Fprintln(&p.log, lines.Text())
		p.mu.Unlock()
	}
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// end asks the process to stop, as an engine does, and fails unless it does so well.
func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("stop %s: %v", p.cmd.Path, err)
	}
	select {
	case <-p.ended:
	case <-time.After(endWithin):
		t.Fatalf("%s did not end within %s", p.cmd.Path, endWithin)
	}
	if p.err != nil {
		t.Errorf("%s ended with %v", p.cmd.Path, p.err)
	}
}

// deliver sends a signed event of Stripe's, by its place among the samples, to the source "stripe",
// and wants a receipt.
func deliver(t *testing.T, gateway *process, sample int) (answer string) {
	t.Helper()
	stripe, _ := all.Named("stripe")
	src := &provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "main", Value: []byte(secret)}}}
	d, err := stripe.Sign(src, stripe.Samples()[sample], time.Now())
	must(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gateway.at.Ingest+"/webhooks/stripe",
		bytes.NewReader(d.Body))
	must(t, err)
	req.Header = d.Header.Clone()
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	said, err := io.ReadAll(res.Body)
	if err := cmp.Or(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("answered %s: %s (%v)", res.Status, said, err)
	}
	return string(said)
}

// applied waits until so many events are in the log, and each has made an object of the mirror.
func applied(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	testkit.Eventually(t, appliedWithin, func() error {
		var events, objects int
		err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM outcomes WHERE status = 'applied'),
			(SELECT count(*) FROM objects)`).Scan(&events, &objects)
		if err != nil || events != n || objects != n {
			return fmt.Errorf("%d events applied, %d objects, want %d of each (%v)", events, objects, n, err)
		}
		return nil
	})
}
