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

// restartWithSettings starts the server again with additional settings. The first start worked
// without them, so an error now is caused by these settings.
func (c *Cluster) restartWithSettings(ctx context.Context, settings map[string]string) error {
	if err := c.server.stop(ctx); err != nil {
		return err
	}
	given := formatSettings(settings)
	err := c.restartServer(given)
	if err == nil {
		err = c.waitReady(ctx)
	}
	if err != nil {
		return fmt.Errorf("PostgreSQL does not start with %s; correct or remove the rejected setting (the view "+
			"pg_settings lists names and values): %w", strings.Join(given, ", "), err)
	}
	c.log.Info("postgres restarted", "dir", c.dir, "settings", given, "pid", c.server.cmd.Process.Pid)
	return nil
}

// restartServer replaces the server, which has ended, by one with more arguments and a new log.
func (c *Cluster) restartServer(settings []string) error {
	log, err := os.OpenFile(logFile(c.dir), os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own copy
	first := c.server.cmd
	cmd := exec.Command(first.Path, first.Args[1:]...)
	for _, s := range settings { // for a repeated name the server uses the last value
		cmd.Args = append(cmd.Args, "-c", s)
	}
	cmd.Dir, cmd.Env, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = first.Dir, first.Env, first.SysProcAttr, log, log
	c.server = &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go c.server.run(started)
	return <-started
}

// formatSettings writes settings as name=value, sorted by name.
func formatSettings(settings map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		out = append(out, name+"="+settings[name])
	}
	return out
}
