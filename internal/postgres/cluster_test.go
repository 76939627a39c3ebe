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

// clusterDir is a new directory that the server's account can enter (only its owner can enter
// t.TempDir).
func clusterDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "postern-cluster-")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	testkit.Must(t, os.Chmod(parent, 0o711))
	return filepath.Join(parent, "pg")
}

func start(t *testing.T, dir string) *postgres.Cluster {
	t.Helper()
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true,
		Logger: testkit.Logger(t)})
	testkit.Must(t, err)
	t.Cleanup(func() { stop(t, c) })
	return c
}

func stop(t *testing.T, c *postgres.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func query(t *testing.T, url, sql string) (response string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	testkit.Must(t, err)
	defer conn.Close(context.Background())
	testkit.Must(t, conn.QueryRow(t.Context(), sql).Scan(&response))
	return response
}

func TestCluster_stopsAndKills_keepData(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	c := start(t, dir)
	testkit.Must(t, errOf(postgres.Migrate(t.Context(), c.URL())))
	if got := query(t, c.URL(), "SELECT current_setting('data_checksums') || current_setting('listen_addresses') || "+
		"current_setting('max_locks_per_transaction')"); got != "on256" {
		t.Errorf("checksums, addresses and locks are %q, want on, none, 256", got)
	}
	_, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true})
	if err == nil || !strings.Contains(err.Error(), "another postern dev uses this directory") {
		t.Errorf("a second cluster in the directory: %v, want an error", err)
	}
	stop(t, c)
	select {
	case <-c.Done():
	default:
		t.Error("stopped, yet not done")
	}
	killedParent(t, dir)
	// This process runs and is not a server of the directory, like a process with a reused pid.
	stale := fmt.Sprintf("%d\n%s\n1700000000\n5432\n", os.Getpid(), filepath.Join(dir, "data"))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "data", "postmaster.pid"), []byte(stale), 0o600))
	if n, err := postgres.Migrate(t.Context(), start(t, dir).URL()); err != nil || n != 0 {
		t.Errorf("after a restart %d migrations are to be applied again, %v; want none", n, err)
	}
}

func TestSocketDir_longPath_isReplaced(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{strings.Repeat("/long", 25), `/a,b`} {
		socket, err := postgres.SocketDir(dir, nil)
		testkit.Must(t, err)
		if len(socket) > 80 || strings.HasPrefix(socket, dir) {
			t.Errorf("the socket of a cluster in %s lies in %s", dir, socket)
		}
		if err := os.Remove(socket); err != nil {
			t.Error(err)
		}
	}
	dir := t.TempDir()
	if socket, err := postgres.SocketDir(dir, nil); err != nil || len(dir) < 80 && socket != filepath.Join(dir, "run") {
		t.Errorf("the socket of a cluster in %s lies in %s, %v", dir, socket, err)
	}
}

// The environment of the helper process below.
const helperDir = "POSTERN_TEST_CLUSTER_DIR"

// TestClusterHelper is the process that killedParent kills; alone it does nothing.
func TestClusterHelper(t *testing.T) {
	dir := os.Getenv(helperDir)
	if dir == "" {
		return
	}
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true})
	testkit.Must(t, err)
	fmt.Println("ready", c.URL())
	<-c.Done()
}

// killedParent makes another process start the cluster, kills that process, and waits until the
// server has ended.
func killedParent(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClusterHelper$")
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	var url string
	if _, err := fmt.Fscanf(out, "ready %s\n", &url); err != nil {
		t.Fatalf("the helper did not start its cluster: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	testkit.Must(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	testkit.Must(t, err)
	testkit.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	testkit.Eventually(t, 10*time.Second, func() error {
		if err := syscall.Kill(pid, 0); err == nil {
			return fmt.Errorf("postgres %d still runs", pid)
		}
		return nil
	})
}

func TestClusterDir_root_serverCanEnter(t *testing.T) {
	t.Parallel()
	closed := t.TempDir() // mode 0700 in it or a parent, and owned by this account
	testkit.Must(t, os.Chmod(closed, 0o700))
	want := filepath.Join(closed, "state", "postgres")
	dir, moved, err := postgres.ClusterDir(want)
	testkit.Must(t, err)
	if os.Geteuid() != 0 {
		if moved || dir != want {
			t.Errorf("got %s, moved %t; the server runs as us and can enter", dir, moved)
		}
		return
	}
	if !moved || !strings.HasPrefix(dir, "/var/tmp/postern-") {
		t.Errorf("got %s, moved %t; want a place that the server's account can enter", dir, moved)
	}
	if again, _, err := postgres.ClusterDir(want); err != nil || again != dir {
		t.Errorf("the second result is %s, %v; want the first, %s", again, err, dir)
	}
	testkit.Must(t, os.Mkdir(filepath.Join(closed, "state"), 0o755))
	link := filepath.Join(t.TempDir(), "link")
	testkit.Must(t, os.Symlink(closed, link))
	if other, _, err := postgres.ClusterDir(filepath.Join(link, "state", "postgres")); err != nil || other != dir {
		t.Errorf("through a link it is %s, %v; want the same, %s", other, err, dir)
	}
	open := clusterDir(t)
	if dir, moved, err := postgres.ClusterDir(open); err != nil || moved || dir != open {
		t.Errorf("got %s, moved %t, %v; want %s itself", dir, moved, err, open)
	}
}

func TestStartCluster_settings_areApplied(t *testing.T) {
	t.Parallel()
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: clusterDir(t), Fast: true,
		Logger:   testkit.Logger(t),
		Settings: map[string]string{"shared_buffers": "16MB", "application_name": "a b=c"}})
	testkit.Must(t, err)
	t.Cleanup(func() { stop(t, c) })
	// A setting that the server has anyway, a new one, and one that was not given.
	const sql = "SELECT current_setting('shared_buffers') || ', ' || reset_val || ', ' || " +
		"current_setting('max_wal_size') FROM pg_settings WHERE name = 'application_name'"
	if got, want := query(t, c.URL(), sql), "16MB, a b=c, 1GB"; got != want {
		t.Errorf("the settings are %q, want %q", got, want)
	}
}

func TestStartCluster_invalidSetting_isNamed(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	for name, c := range map[string]struct {
		settings map[string]string
		says     []string
	}{
		"no such name": {map[string]string{"shared_bufers": "1GB"},
			[]string{"correct or remove", "shared_bufers=1GB",
				`unrecognized configuration parameter "shared_bufers"`}},
		"bad value": {map[string]string{"work_mem": "1MB", "fsync": "perhaps"},
			[]string{"fsync=perhaps, work_mem=1MB", `parameter "fsync" requires a Boolean value`}},
	} {
		running, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true,
			Settings: c.settings})
		if err == nil {
			stop(t, running)
			t.Errorf("%s: it starts", name)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not have %q: %v", name, want, err)
			}
		}
	}
	start(t, dir) // an invalid setting leaves nothing that prevents a start without it
}

// lockFiles returns PostgreSQL's lock files in the directory of a cluster.
func lockFiles(t *testing.T, dir string) (server, socket string) {
	t.Helper()
	folder, err := postgres.SocketDir(dir, nil)
	testkit.Must(t, err)
	return filepath.Join(dir, "data", "postmaster.pid"), filepath.Join(folder, ".s.PGSQL.5432.lock")
}

// accountCommand runs a program as the server's account.
func accountCommand(t *testing.T, program string) *exec.Cmd {
	t.Helper()
	credential, err := postgres.ServerCredential()
	testkit.Must(t, err)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	return cmd
}

// ended is a process of the server's account that has ended: a zombie until the test ends, or
// waited for.
func ended(t *testing.T, zombie bool) int {
	t.Helper()
	cmd := accountCommand(t, "true")
	testkit.Must(t, cmd.Start())
	if !zombie {
		testkit.Must(t, cmd.Wait())
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

// living is a process of the server's account that is not a server and runs until the test ends.
// The system may give the pid of a dead server to such a process.
func living(t *testing.T) int {
	t.Helper()
	cmd := accountCommand(t, "cat")
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	testkit.Must(t, err)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// write writes a file that the server's account owns.
func write(t *testing.T, file, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := postgres.ServerCredential()
	if err == nil && c != nil {
		err = os.Chown(file, int(c.Uid), int(c.Gid))
	}
	testkit.Must(t, err)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
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

// startRejected tries to start a cluster while another server runs, without the lock that excludes
// a second postern.
func startRejected(t *testing.T, dir string) {
	t.Helper()
	testkit.Must(t, os.Remove(filepath.Join(dir, "lock")))
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
	startRejected(t, dir)
	for file, want := range files {
		if got := read(t, file); got != want {
			t.Errorf("%s was %q and is %q", file, want, got)
		}
	}
	if err := os.Remove(server); err != nil { // the server notices it within a minute
		t.Fatal(err)
	}
	startRejected(t, dir)
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
	testkit.Must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	session := int(conn.PgConn().PID())
	testkit.Must(t, syscall.Kill(session, syscall.SIGSTOP))
	defer syscall.Kill(session, syscall.SIGKILL) // if the test failed before it
	line, _, _ := strings.Cut(read(t, server), "\n")
	pid, err := strconv.Atoi(line)
	testkit.Must(t, err)
	testkit.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	<-c.Done()
	startRejected(t, dir)
	if line, _, _ := strings.Cut(read(t, server), "\n"); line != strconv.Itoa(pid) {
		t.Errorf("the lock names %s, want %d", line, pid)
	}
	testkit.Must(t, syscall.Kill(session, syscall.SIGKILL))
	testkit.Must(t, os.Remove(filepath.Join(dir, "lock")))
	start(t, dir)
}

// After a restart of the machine another server may have a segment with the id in the lock file.
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
