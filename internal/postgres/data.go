package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const orphanTimeout = 10 * time.Second

func dataDir(dir string) string { return filepath.Join(dir, "data") }

// prepareData makes the data directory where there is none and clears what a crash left in it.
func prepareData(ctx context.Context, dir string, acc *account, fast bool) (installation, error) {
	version, err := os.ReadFile(filepath.Join(dataDir(dir), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return initialise(ctx, dir, acc, fast)
	}
	if err != nil {
		return installation{}, err
	}
	major, err := majorVersion(strings.TrimSpace(string(version)))
	if err != nil {
		return installation{}, err
	}
	inst, err := findInstallation(major)
	if err != nil {
		return installation{}, err
	}
	return inst, awaitOrphan(ctx, dataDir(dir))
}

// initialise runs initdb into a directory beside and renames it, so that one cut short is never taken for data.
func initialise(ctx context.Context, dir string, acc *account, fast bool) (installation, error) {
	inst, err := findInstallation(0)
	if err != nil {
		return inst, err
	}
	fresh := dataDir(dir) + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return inst, err
	}
	locale := "C.UTF-8"
	if runtime.GOOS == "darwin" {
		locale = "C"
	}
	args := []string{"-D", fresh, "-U", clusterUser, "-A", "trust", "-E", "UTF8", "--locale=" + locale, "--data-checksums", "--no-instructions"}
	if fast {
		args = append(args, "--no-sync")
	}
	if err := inst.run(ctx, dir, acc, "initdb", args...); err != nil {
		return inst, err
	}
	return inst, os.Rename(fresh, dataDir(dir))
}

// awaitOrphan deals with postmaster.pid: of a dead process it is removed; a server that outlived a killed parent is given
// time to end, and then is an error.
func awaitOrphan(ctx context.Context, data string) error {
	file := filepath.Join(data, "postmaster.pid")
	ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		pid, err := readPID(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !serves(pid, data) {
			return os.Remove(file)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("another PostgreSQL server (pid %d) uses %s; stop it first: kill -INT %d", pid, data, pid)
		}
	}
}

// readPID reads the first line of postmaster.pid.
func readPID(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(strings.TrimSpace(line))
}

// serves tells whether a process lives and is a server of the data directory. Where /proc does not tell what it runs,
// whatever lives under that number is taken for it.
func serves(pid int, data string) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return runtime.GOOS != "linux"
	}
	return strings.Contains(string(command), data)
}
