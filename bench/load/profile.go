package load

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

// Profile says how long a program is profiled. It works for WarmUp first. Then processor time is
// sampled for CPU (whole seconds), and an execution trace is recorded for Trace.
type Profile struct{ WarmUp, CPU, Trace time.Duration }

// UsualProfile returns durations that are long enough for a busy program.
func UsualProfile() Profile {
	return Profile{WarmUp: time.Second, CPU: 8 * time.Second, Trace: time.Second}
}

// Takes returns about how long the program must be kept busy.
func (w Profile) Takes() time.Duration { return w.WarmUp + w.CPU + w.Trace + 6*time.Second }

// Take writes profiles of the program at an admin address into a folder: processor time,
// allocations, live memory and an execution trace.
func (w Profile) Take(ctx context.Context, dir, program, admin string) error {
	select {
	case <-time.After(w.WarmUp):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, p := range []struct{ name, query string }{
		{"cpu", fmt.Sprintf("profile?seconds=%.0f", w.CPU.Seconds())},
		{"trace", fmt.Sprintf("trace?seconds=%g", w.Trace.Seconds())},
		{"allocs", "allocs"},
		{"heap", "heap?gc=1"},
	} {
		if err := saveResponse(ctx, "http://"+admin+"/debug/pprof/"+p.query, file(dir, program, p.name)); err != nil {
			return fmt.Errorf("take profile %s of %s: %w", p.name, program, err)
		}
	}
	return nil
}

func file(dir, program, kind string) string { return filepath.Join(dir, program+"."+kind) }

// saveResponse writes the body of a response into a file.
func saveResponse(ctx context.Context, url, file string) error {
	body, err := Get(ctx, url, time.Minute)
	if err != nil {
		return err
	}
	return os.WriteFile(file, body, 0o644)
}

// Get returns the body of a response with status 200. The time to it is limited.
func Get(ctx context.Context, url string, within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	return io.ReadAll(res.Body)
}

// waits maps the waiting profiles of a trace to file names: locks and channels, network, scheduler.
// The runtime's own block and mutex profiles are empty unless a program enables them. Postern does
// not enable them, because every user would pay for it.
var waits = map[string]string{"sync": "block", "net": "network", "sched": "scheduler"}

// ExplainProfiles extracts profiles from a trace and writes the largest entries of each profile as
// text.
func ExplainProfiles(ctx context.Context, dir, program string) error {
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
