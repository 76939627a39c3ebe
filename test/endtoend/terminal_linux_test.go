package endtoend_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A SIGHUP reloads what runs in a terminal, too; but when the terminal closes, the instance stops in order and leaves nothing behind.
func TestClosedTerminalStopsDev(t *testing.T) {
	t.Parallel()
	program := filepath.Join(build(t), "postern")
	file, dir := filepath.Join(t.TempDir(), "postern.yaml"), t.TempDir()
	put(t, file, fmt.Sprintf(settings, testkit.Database(t).URL, testkit.JetStream(t).URL, mostRejections, stripeSecret, shop, shopifySecret))
	window := newTerminal(t, 80, 24)
	cmd := exec.Command(program, "dev", "--config", file, "--dir", dir)
	var said bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environment(), window.slave, &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	var in *config.Instance
	testkit.Eventually(t, readyWithin, func() (err error) {
		in, err = config.ReadInstance(dir)
		return err
	})
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() error { return counted(t, in.AdminURL, 1) })
	_ = window.master.Close() // as when a window is closed
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v\n%s", err, &said)
		}
	case <-time.After(endWithin):
		t.Errorf("still runs %s after its terminal closed", endWithin)
	}
}
