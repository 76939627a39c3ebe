// Package profile takes profiles of running programs and writes what they say most of all as text
// beside them.
package profile

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Watch is how long a program is watched: it works for Settle before anything is taken, then
// processor time is sampled for CPU (whole seconds), and everything that waits is traced for Trace.
type Watch struct{ Settle, CPU, Trace time.Duration }

// Usual is long enough for a busy program.
func Usual() Watch { return Watch{Settle: time.Second, CPU: 8 * time.Second, Trace: time.Second} }

// Takes is how long a program must be kept busy, about.
func (w Watch) Takes() time.Duration { return w.Settle + w.CPU + w.Trace + 6*time.Second }

// Take writes profiles of the program behind an admin address into a folder: where processor time
// goes, what allocates, what is kept, and a trace, which holds what was waited for.
func (w Watch) Take(ctx context.Context, dir, program, admin string) error {
	select {
	case <-time.After(w.Settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, p := range []struct{ name, query string }{
		{"cpu", fmt.Sprintf("profile?seconds=%.0f", w.CPU.Seconds())},
		{"trace", fmt.Sprintf("trace?seconds=%g", w.Trace.Seconds())},
		{"allocs", "allocs"},
		{"heap", "heap?gc=1"},
	} {
		if err := fetch(ctx, "http://"+admin+"/debug/pprof/"+p.query, file(dir, program, p.name)); err != nil {
			return fmt.Errorf("take profile %s of %s: %w", p.name, program, err)
		}
	}
	return nil
}

func file(dir, program, kind string) string { return filepath.Join(dir, program+"."+kind) }

func fetch(ctx context.Context, url, file string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, res.Body); err != nil {
		return fmt.Errorf("%w, %w", err, out.Close())
	}
	return out.Close()
}

// waits are the profiles that a trace holds: waiting for locks and channels, for the network, for a
// processor. The runtime's own profiles of blocking and of locks are empty unless a program asks
// for them, and Postern does not: all who never look would pay.
var waits = map[string]string{"sync": "block", "net": "network", "sched": "scheduler"}

// Explain makes profiles of a trace, and writes the largest entries of each profile as text.
func Explain(ctx context.Context, dir, program string) error {
	for kind, name := range waits {
		text, err := exec.CommandContext(ctx, "go", "tool", "trace", "-pprof="+kind,
			file(dir, program, "trace")).Output()
		if err != nil {
			return fmt.Errorf("read trace of %s: %w", program, err)
		}
		if err := os.WriteFile(file(dir, program, name), text, 0o644); err != nil {
			return err
		}
	}
	for name, sample := range map[string]string{"cpu": "", "allocs": "alloc_space", "heap": "inuse_space",
		"block": "delay", "network": "delay", "scheduler": "delay"} {
		args := []string{"tool", "pprof", "-top", "-nodecount=60"}
		if sample != "" {
			args = append(args, "-sample_index="+sample)
		}
		text, err := exec.CommandContext(ctx, "go", append(args, file(dir, program, name))...).Output()
		if err != nil {
			return fmt.Errorf("read profile %s of %s: %w", name, program, err)
		}
		if err := os.WriteFile(file(dir, program, name+".txt"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
