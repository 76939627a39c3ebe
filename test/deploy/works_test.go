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

// daemonSettings is the configuration of both daemons in the image, with free ports.
const daemonSettings = `
database: {url: %q}
nats: {url: %q, tls: {ca: %[3]s/ca.crt, cert: %[3]s/%[4]s.crt, key: %[3]s/%[4]s.key}}
ingest: {listen: "127.0.0.1:0", drain_delay: 1ms}
admin: {listen: "127.0.0.1:0"}
log: {format: json}
sources:
  stripe: {provider: stripe, secrets: [{name: main, file: %[3]s/stripe.secret}]}
`

// checkWorks runs the daemons of the unpacked image. If the test runs as root, they run in a chroot
// as the image's account. Otherwise they run directly from the unpacked folder.
func (img *image) checkWorks(t *testing.T) {
	db, certs := testkit.Database(t), allSecrets(t)
	// The test's PostgreSQL has only a socket, which the chroot does not contain.
	proxy := testkit.Proxy(t, db.URL)
	database, nats := proxy.URL, composeNATS(t, certs)
	folder := "/etc/postern"
	if os.Geteuid() != 0 {
		folder = img.path("etc/postern")
	}
	write(t, img.path("etc/postern/stripe.secret"), secret+"\n")
	write(t, img.path("etc/postern/ca.crt"), read(t, filepath.Join(certs, "ca.crt")))
	// The same limit as in compose.yaml.
	spool := readCompose(t).Services["gateway-1"].Environment[spoolVariable]
	env := []string{spoolVariable + "=" + spool}
	if os.Geteuid() != 0 { // below the folder of the tests, which is /tmp for most
		env = []string{spoolVariable + "=" + img.path(spool), "POSTERN_INGEST_SPOOL_UNSAFE_DIR=true"}
	}
	daemon := func(name string) *process {
		for _, file := range []string{name + ".crt", name + ".key"} {
			write(t, img.path("etc/postern/"+file), read(t, filepath.Join(certs, file)))
		}
		write(t, img.path("etc/postern/"+name+".yaml"), fmt.Sprintf(daemonSettings, database, nats, folder, name))
		cmd := img.command(name, "--config", folder+"/"+name+".yaml")
		cmd.Env = append(cmd.Environ(), env...)
		return start(t, cmd)
	}
	gateway, processor := daemon("gateway"), daemon("processor")
	img.ready(t, gateway)
	img.ready(t, processor)
	samples := []int{0, 1, 4, 7, 8, 11, 15, 17} // each about another object
	sent := 1
	// A busy machine may take longer than 0.75 s to append and spool this one.
	for answer := deliver(t, gateway, samples[0]); strings.Contains(answer, `"spooled"`); answer = deliver(t, gateway,
		samples[sent-1]) {
		if sent++; sent == len(samples) {
			t.Fatalf("%d deliveries were answered so: %s while PostgreSQL was available", sent-1, answer)
		}
	}
	applied(t, db.Pool, sent)

	proxy.Cut()
	if answer := deliver(t, gateway, samples[sent]); !strings.Contains(answer, `"spooled":true`) {
		t.Errorf("answered %s while PostgreSQL was unavailable", answer)
	}
	gateway.end(t)
	gateway = daemon("gateway") // without PostgreSQL, with the spool of the previous one
	img.ready(t, gateway)
	proxy.Restore()
	applied(t, db.Pool, sent+1)
	gateway.end(t)
	processor.end(t)
}

// ready waits until the command of the health checks reports that a daemon is ready.
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

// command returns a command that runs a program of the image.
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
	// ended is closed after the process has ended. err is set before.
	ended chan struct{}
	err   error

	mu  sync.Mutex
	log strings.Builder
}

type addresses struct{ Ingest, Admin string }

// start starts a daemon and waits until it is ready. The daemon is killed at the end of the test at
// the latest.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	out, in, err := os.Pipe()
	testkit.Must(t, err)
	cmd.Stderr, cmd.Stdout = in, in
	err = cmd.Start()
	_ = in.Close() // the process has its own copy
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
		_ = cmd.Process.Kill() // the process may have ended already
		<-p.ended
		if t.Failed() {
			t.Logf("%s log:\n%s", cmd.Path, p.said())
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

// end stops the process as a container engine does. The process must end with status 0.
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

// deliver sends one of Stripe's samples, signed, to the source "stripe", and returns the receipt.
func deliver(t *testing.T, gateway *process, sample int) (answer string) {
	t.Helper()
	stripe, _ := all.Named("stripe")
	src := &provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "main", Value: []byte(secret)}}}
	d, err := stripe.Sign(src, stripe.Samples()[sample], time.Now())
	testkit.Must(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gateway.at.Ingest+"/webhooks/stripe",
		bytes.NewReader(d.Body))
	testkit.Must(t, err)
	req.Header = d.Header.Clone()
	res, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	said, err := io.ReadAll(res.Body)
	if err := cmp.Or(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("answered %s: %s (%v)", res.Status, said, err)
	}
	return string(said)
}

// applied waits until that many events are in the log and their objects are in the mirror.
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
