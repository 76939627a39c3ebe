package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// child is the server's process.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended; readable after done is closed
}

// startServer starts postgres itself and not pg_ctl, so that this process can wait for its child.
func startServer(dir, socket string, inst installation, acc *account, fast bool,
	settings []string) (*child, error) {
	log, err := os.OpenFile(logFile(dir), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	cmd := exec.Command(filepath.Join(inst.bin, "postgres"), serverArgs(dataDir(dir), socket, fast, settings)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, serverEnv(), log, log
	cmd.SysProcAttr = childAttributes()
	cmd.SysProcAttr.Credential = acc.credential()
	// A separate process group: Ctrl-C in the terminal stops this process, which then stops the
	// server in order.
	cmd.SysProcAttr.Setpgid = true
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go c.run(started)
	return c, <-started
}

// run keeps the thread that started the child until the child ends. The kernel sends the signal of
// childAttributes when that thread ends, and Go may end an idle thread.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(c.done)
	if err := c.cmd.Start(); err != nil {
		c.err = err
		started <- fmt.Errorf("start postgres: %w", err)
		return
	}
	started <- nil
	if err := c.cmd.Wait(); err != nil {
		c.err = err
		return
	}
	c.err = errors.New("exit status 0")
}

// stop requests a fast shutdown, then an immediate one, then kills the server.
func (c *child) stop(ctx context.Context) error {
	if c.signalAndWait(ctx, syscall.SIGINT, fastTimeout) {
		return nil
	}
	if c.signalAndWait(context.WithoutCancel(ctx), syscall.SIGQUIT, quitTimeout) {
		return nil
	}
	pid := c.cmd.Process.Pid
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill postgres %d: %w", pid, err)
	}
	<-c.done
	return nil
}

// signalAndWait sends a signal and reports whether the server ended in time.
func (c *child) signalAndWait(ctx context.Context, sig syscall.Signal, timeout time.Duration) bool {
	if c.cmd.Process == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_ = c.cmd.Process.Signal(sig) // fails only if it has already ended
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// serverArgs are the settings of a private cluster. They are durable unless fast is true. For a
// repeated name the server uses the last value, which is that of the additional settings.
func serverArgs(data, socket string, fast bool, additional []string) []string {
	settings := []string{
		"listen_addresses=", "port=" + clusterPort, "unix_socket_directories=" + socket, "unix_socket_permissions=0700",
		"max_connections=100", "max_locks_per_transaction=256", "shared_buffers=128MB", "max_wal_size=4GB",
		"timezone=UTC", "log_timezone=UTC", "log_line_prefix=%m [%p] %q%a ",
	}
	if fast { // mmap: shared memory of a killed server is removed with its directory
		settings = append(settings, "fsync=off", "full_page_writes=off", "max_connections=400", "max_wal_size=1GB",
			"shared_buffers=32MB", "dynamic_shared_memory_type=mmap")
	}
	args := []string{"-D", data}
	for _, s := range append(settings, additional...) {
		args = append(args, "-c", s)
	}
	return args
}
