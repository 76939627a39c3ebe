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

// clusterDir is a fresh directory that the server's account can enter (t.TempDir is its owner's alone).
func clusterDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "postern-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, "pg")
}

func start(t *testing.T, dir string) *postgres.Cluster {
	t.Helper()
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true, Logger: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
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

func query(t *testing.T, url, sql string) (answer string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestClusterKeepsItsDataThroughStopsAndKills(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	c := start(t, dir)
	if _, err := postgres.Migrate(t.Context(), c.URL()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, c.URL(), "SELECT current_setting('data_checksums') || current_setting('listen_addresses') || current_setting('max_locks_per_transaction')"); got != "on256" {
		t.Errorf("checksums, addresses and locks are %q, want on, none, 256", got)
	}
	_, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true})
	if err == nil || !strings.Contains(err.Error(), "another postern dev uses this directory") {
		t.Errorf("a second cluster in the directory: %v, want it refused", err)
	}
	stop(t, c)
	select {
	case <-c.Done():
	default:
		t.Error("stopped, yet not done")
	}
	killedParent(t, dir)
	// This very process lives and is no server of the directory: what a reused process number looks like.
	stale := fmt.Sprintf("%d\n%s\n1700000000\n5432\n", os.Getpid(), filepath.Join(dir, "data"))
	if err := os.WriteFile(filepath.Join(dir, "data", "postmaster.pid"), []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := postgres.Migrate(t.Context(), start(t, dir).URL()); err != nil || n != 0 {
		t.Errorf("after a restart %d migrations are to be applied again, %v; want none", n, err)
	}
}

func TestSocketDirIsShortEnough(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{strings.Repeat("/long", 25), `/a,b`} {
		socket, err := postgres.SocketDir(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
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

// TestClusterHelper is the process that killedParent kills; by itself it does nothing.
func TestClusterHelper(t *testing.T) {
	dir := os.Getenv(helperDir)
	if dir == "" {
		return
	}
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready", c.URL())
	<-c.Done()
}

// killedParent has another process start the cluster, kills that, and waits for the server to end by itself.
func killedParent(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClusterHelper$")
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var url string
	if _, err := fmt.Fscanf(out, "ready %s\n", &url); err != nil {
		t.Fatalf("the helper did not start its cluster: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	testkit.Eventually(t, 10*time.Second, func() error {
		if err := syscall.Kill(pid, 0); err == nil {
			return fmt.Errorf("postgres %d still runs", pid)
		}
		return nil
	})
}

func TestClusterDirIsWhereTheServerCanEnter(t *testing.T) {
	t.Parallel()
	closed := t.TempDir() // 0700 somewhere above or at it, and ours
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(closed, "state", "postgres")
	dir, moved, err := postgres.ClusterDir(want)
	if err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("the second answer is %s, %v; want the first, %s", again, err, dir)
	}
	if err := os.Mkdir(filepath.Join(closed, "state"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(closed, link); err != nil {
		t.Fatal(err)
	}
	if other, _, err := postgres.ClusterDir(filepath.Join(link, "state", "postgres")); err != nil || other != dir {
		t.Errorf("through a link it is %s, %v; want the same, %s", other, err, dir)
	}
	open := clusterDir(t)
	if dir, moved, err := postgres.ClusterDir(open); err != nil || moved || dir != open {
		t.Errorf("got %s, moved %t, %v; want %s itself", dir, moved, err, open)
	}
}
