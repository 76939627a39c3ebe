package postgres_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// lockFiles are PostgreSQL's lock files in the directory of a cluster.
func lockFiles(t *testing.T, dir string) (server, socket string) {
	t.Helper()
	folder, err := postgres.SocketDir(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data", "postmaster.pid"), filepath.Join(folder, ".s.PGSQL.5432.lock")
}

// ended is a process of the server's account that has ended; a zombie until the test ends, or waited for.
func ended(t *testing.T, zombie bool) int {
	t.Helper()
	credential, err := postgres.ServerCredential()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !zombie {
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	testkit.Eventually(t, 10*time.Second, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil || !strings.Contains(string(stat), ") Z ") {
			return fmt.Errorf("it is no zombie: %s, %w", stat, err)
		}
		return nil
	})
	return cmd.Process.Pid
}

// living is a process of the server's account that is no server and lives until the test ends. The
// system may give such a process the pid of a dead server.
func living(t *testing.T) int {
	t.Helper()
	credential, err := postgres.ServerCredential()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// write writes a file that the server's account owns.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := postgres.ServerCredential()
	if err == nil && c != nil {
		err = os.Chown(file, int(c.Uid), int(c.Gid))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestStartCluster_lockOfADeadServer_isRemoved(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	stop(t, start(t, dir))
	server, socket := lockFiles(t, dir)
	text := func(pid int) string {
		return fmt.Sprintf("%d\n%s\n1700000000\n5432\n%s\n", pid, filepath.Join(dir, "data"), filepath.Dir(socket))
	}
	for name, lock := range map[string]string{
		"dead":   text(ended(t, false)),
		"zombie": text(ended(t, true)),
		"reused": text(living(t)),
		"empty":  "",
	} {
		for _, files := range [][]string{{socket}, {server}, {server, socket}} {
			for _, file := range files {
				write(t, file, lock)
			}
			c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true})
			if err != nil {
				t.Errorf("%s, in %v: %v", name, files, err)
				continue
			}
			stop(t, c)
		}
	}
}

// refused starts a cluster where another server is at work, without the lock that keeps a second postern away.
func refused(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: dir, Fast: true})
	if err == nil || !strings.Contains(err.Error(), "another PostgreSQL server") {
		t.Errorf("a start beside a living server: %v", err)
	}
}

func TestStartCluster_lockOfALivingServer_stays(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	c := start(t, dir)
	server, socket := lockFiles(t, dir)
	files := map[string]string{server: read(t, server), socket: read(t, socket)}
	refused(t, dir)
	for file, want := range files {
		if got := read(t, file); got != want {
			t.Errorf("%s was %q and is %q", file, want, got)
		}
	}
	if err := os.Remove(server); err != nil { // the server notices it within a minute
		t.Fatal(err)
	}
	refused(t, dir)
	if got := read(t, socket); got != files[socket] {
		t.Errorf("the socket's lock was %q and is %q", files[socket], got)
	}
	write(t, server, files[server])
	if got := query(t, c.URL(), "SELECT 'alive'"); got != "alive" {
		t.Error(got)
	}
}

func TestStartCluster_sessionsOfAKilledServer_areWaitedFor(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	c := start(t, dir)
	server, _ := lockFiles(t, dir)
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	session := int(conn.PgConn().PID())
	if err := syscall.Kill(session, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(session, syscall.SIGKILL) // where the test has failed before it
	line, _, _ := strings.Cut(read(t, server), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	refused(t, dir)
	if line, _, _ := strings.Cut(read(t, server), "\n"); line != strconv.Itoa(pid) {
		t.Errorf("the lock names %s, want %d", line, pid)
	}
	if err := syscall.Kill(session, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	start(t, dir)
}

// After a restart of the machine another server may have a segment of the id that the lock names.
func TestStartCluster_sharedMemoryOfAnotherServer_isNotWaitedFor(t *testing.T) {
	t.Parallel()
	dir, other := clusterDir(t), clusterDir(t)
	server, _ := lockFiles(t, dir)
	elsewhere, _ := lockFiles(t, other)
	memory := func(file string) []string {
		lines := strings.Split(read(t, file), "\n")
		if len(lines) < 7 || len(strings.Fields(lines[6])) != 2 {
			t.Fatalf("no shared memory in %q", lines)
		}
		return strings.Fields(lines[6])
	}
	c := start(t, dir)
	key := memory(server)[0]
	stop(t, c)
	start(t, other)
	data := filepath.Join(dir, "data")
	write(t, server, fmt.Sprintf("%d\n%s\n1700000000\n5432\n%s\n\n%s %s\n",
		ended(t, false), data, filepath.Join(dir, "run"), key, memory(elsewhere)[1]))
	start(t, dir)
}
