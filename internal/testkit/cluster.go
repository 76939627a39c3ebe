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

// cluster is the one PostgreSQL server of a test process, started when the first test asks for a database. Its database
// "postern" is migrated and then left alone: it is the template that every test's database is a copy of.
type cluster struct {
	once  sync.Once
	err   error
	dir   string
	pg    *postgres.Cluster
	admin *pgxpool.Pool
}

// shared is the process's cluster: a package variable, since tests of one process have nothing else in common.
var shared cluster

func (c *cluster) start() error {
	c.once.Do(func() { c.err = c.startOnce() })
	return c.err
}

func (c *cluster) startOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	reap(os.TempDir())
	reap(scratch())
	root, err := os.MkdirTemp(scratch(), clusterPrefix)
	if err != nil {
		return err
	}
	c.dir = root
	// Where PostgreSQL runs as another account than ours, that one must be able to enter.
	if err := os.Chmod(root, 0o711); err != nil {
		return err
	}
	if c.pg, err = postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: filepath.Join(root, "cluster"), Fast: true}); err != nil {
		return err
	}
	if _, err := postgres.Migrate(ctx, c.pg.URL()); err != nil {
		return err
	}
	c.admin, err = postgres.Connect(ctx, postgres.Options{URL: c.url("postgres"), AppName: "testkit", MaxConns: 4})
	return err
}

// url reaches another database of the cluster.
func (c *cluster) url(database string) string {
	u, err := url.Parse(c.pg.URL())
	if err != nil {
		panic(fmt.Sprintf("testkit: cluster URL: %v", err)) // made by our own code
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

// reap removes what killed test processes left behind: directories older than an hour that nobody holds the lock of.
func reap(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, clusterPrefix+"*")) // the pattern is ours
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > time.Hour && abandoned(filepath.Join(dir, "cluster", "lock")) {
			_ = os.RemoveAll(dir) // another user's: not ours to remove
		}
	}
}

func abandoned(lock string) bool {
	f, err := os.Open(lock)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
