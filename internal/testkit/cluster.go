package testkit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	clusterPrefix = "postern-test-"
	startTimeout  = 2 * time.Minute
	stopTimeout   = 20 * time.Second
)

// cluster is the PostgreSQL server of a test process. It starts when the first test asks for a
// database. Its database "postern" is migrated and is the template of every test's database.
type cluster struct {
	once  sync.Once
	err   error
	dir   string
	pg    *postgres.Cluster
	admin *pgxpool.Pool
}

// sharedCluster is the cluster of the process. It is a package variable because the tests of a
// process have no other object in common.
var sharedCluster cluster

func (c *cluster) start() error {
	c.once.Do(func() { c.err = c.startOnce() })
	return c.err
}

func (c *cluster) startOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	removeAbandoned(os.TempDir())
	removeAbandoned(ScratchDir())
	root, err := os.MkdirTemp(ScratchDir(), clusterPrefix)
	if err != nil {
		return err
	}
	c.dir = root
	// PostgreSQL may run as another account than the test. That account must be able to enter the
	// directory.
	if err := os.Chmod(root, 0o711); err != nil {
		return err
	}
	dir := filepath.Join(root, "cluster")
	if err := PrepareCluster(ctx, dir); err != nil {
		return err
	}
	if c.pg, err = postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: dir, Fast: true}); err != nil {
		return err
	}
	c.admin, err = postgres.Connect(ctx, postgres.Options{URL: c.url("postgres"), AppName: "testkit", MaxConns: 4})
	return err
}

// url returns the URL of another database of the cluster.
func (c *cluster) url(database string) string {
	u, err := url.Parse(c.pg.URL())
	if err != nil {
		panic(fmt.Sprintf("testkit: cluster URL: %v", err)) // our own code built the URL
	}
	u.Path = "/" + database
	return u.String()
}

func (c *cluster) stop() error {
	if c.dir == "" {
		return nil
	}
	if c.admin != nil {
		c.admin.Close()
	}
	var err error
	if c.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		err = c.pg.Stop(ctx)
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// removeAbandoned removes the directories of killed test processes. It removes a directory that is
// older than an hour and whose lock no process holds.
func removeAbandoned(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, clusterPrefix+"*")) // the pattern is a constant and valid
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > time.Hour && isAbandoned(filepath.Join(dir, "cluster", "lock")) {
			_ = os.RemoveAll(dir) // a directory of another user cannot be removed
		}
	}
}

func isAbandoned(lock string) bool {
	f, err := os.Open(lock)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
