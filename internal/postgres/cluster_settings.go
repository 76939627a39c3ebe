package postgres

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// restart starts the server a second time, with settings on top of those that it has. The first start, without them, has shown that all
// else is well, so what fails now fails because of them.
func (c *Cluster) restart(ctx context.Context, settings map[string]string) error {
	if err := c.server.stop(ctx); err != nil {
		return err
	}
	given := pairs(settings)
	err := c.startAgain(given)
	if err == nil {
		err = c.ready(ctx)
	}
	if err != nil {
		return fmt.Errorf("PostgreSQL does not start with %s; correct or leave out what it refuses (the view pg_settings has names and values): %w", strings.Join(given, ", "), err)
	}
	c.log.Info("postgres restarted", "dir", c.dir, "settings", given, "pid", c.server.cmd.Process.Pid)
	return nil
}

// startAgain replaces the server, which has ended, by one with more arguments and a log of its own.
func (c *Cluster) startAgain(settings []string) error {
	log, err := os.OpenFile(logFile(c.dir), os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own copy
	first := c.server.cmd
	cmd := exec.Command(first.Path, first.Args[1:]...)
	for _, s := range settings { // of two that are given for one name the server takes the last
		cmd.Args = append(cmd.Args, "-c", s)
	}
	cmd.Dir, cmd.Env, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = first.Dir, first.Env, first.SysProcAttr, log, log
	c.server = &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go c.server.run(started)
	return <-started
}

// pairs writes settings as name=value, in the order of their names.
func pairs(settings map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		out = append(out, name+"="+settings[name])
	}
	return out
}
