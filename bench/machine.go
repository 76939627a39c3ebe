package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/postern-gateway/postern/bench/load"
)

// machine describes the hardware and software of a measurement.
type machine struct {
	CPU        string            `json:"cpu"`
	Cores      int               `json:"cores"`
	MemoryGiB  float64           `json:"memory_gib"`
	Kernel     string            `json:"kernel"`
	Go         string            `json:"go"`
	PostgreSQL string            `json:"postgresql"`
	NATS       string            `json:"nats"`
	Settings   map[string]string `json:"postgresql_settings"`
	// Traces means that gateway and processor sent traces.
	Traces bool `json:"traces,omitempty"`
}

// shownSettings are the settings of PostgreSQL that matter to a reader. The settings given for a
// run are added.
var shownSettings = []string{"fsync", "synchronous_commit", "full_page_writes", "wal_compression", "shared_buffers",
	"max_wal_size", "wal_buffers", "checkpoint_timeout", "commit_delay"}

// describeMachine collects the description of a machine.
func describeMachine(ctx context.Context, m *load.Machine) (machine, error) {
	d := machine{CPU: model(), Cores: runtime.NumCPU(), Go: runtime.Version(),
		NATS: m.JS.Conn().ConnectedServerVersion(), Traces: m.Traces != nil}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return d, err
	}
	d.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return d, err
	}
	d.MemoryGiB = float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	var err error
	if d.Settings, err = m.SettingsInForce(ctx, append(shownSettings, "server_version")...); err != nil {
		return d, err
	}
	d.PostgreSQL = d.Settings["server_version"]
	delete(d.Settings, "server_version")
	return d, nil
}

// String describes the machine in one line.
func (m machine) String() string {
	var set []string
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		set = append(set, name+" "+m.Settings[name])
	}
	traces := ""
	if m.Traces {
		traces = "; traces on"
	}
	return fmt.Sprintf("%s, %d cores, %.0f GiB; %s; %s; PostgreSQL %s (%s); NATS %s with file storage%s",
		m.CPU, m.Cores, m.MemoryGiB, m.Kernel, m.Go, m.PostgreSQL, strings.Join(set, ", "), m.NATS, traces)
}

// model returns the processor's name, or the architecture where the kernel does not name it.
func model() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// currentCommit returns the current commit, with a + if the tree has changes. It returns "" without
// git.
func currentCommit(ctx context.Context) string {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return ""
	}
	commit := strings.TrimSpace(string(head))
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
	if err != nil || len(changed) > 0 {
		return commit + "+"
	}
	return commit
}
