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

const staleServerTimeout = 10 * time.Second

func dataDir(dir string) string { return filepath.Join(dir, "data") }

// prepareData creates the data directory if it does not exist, and removes stale lock files after a
// crash.
func prepareData(ctx context.Context, dir string, acc *account, fast bool) (installation, error) {
	version, err := os.ReadFile(filepath.Join(dataDir(dir), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return initDataDir(ctx, dir, acc, fast)
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
	return inst, removeStaleLock(ctx, filepath.Join(dataDir(dir), "postmaster.pid"), dataDir(dir))
}

// initDataDir runs initdb in another directory and renames it, so that an interrupted run is never
// used as data.
func initDataDir(ctx context.Context, dir string, acc *account, fast bool) (installation, error) {
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
	args := []string{"-D", fresh, "-U", clusterUser, "-A", "trust", "-E", "UTF8", "--locale=" + locale,
		"--data-checksums", "--no-instructions"}
	if fast {
		args = append(args, "--no-sync")
	}
	if err := inst.run(ctx, dir, acc, "initdb", args...); err != nil {
		return inst, err
	}
	return inst, os.Rename(fresh, dataDir(dir))
}

// removeStaleLock removes a PostgreSQL lock file (postmaster.pid, or the one next to the socket) of
// a dead server. It waits for a server that outlived a killed parent, and for the sessions of a
// killed server; if they do not end in time, it returns an error. PostgreSQL itself would mistake a
// zombie, or another program with the same pid, for a running server.
func removeStaleLock(ctx context.Context, file, data string) error {
	ctx, cancel := context.WithTimeout(ctx, staleServerTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		owner, err := readLock(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !owner.isAlive(data) {
			return os.Remove(file)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("another PostgreSQL server (pid %d), or one of its sessions, uses %s; stop it "+
				"first: kill -INT %d, and each process that has this folder open", owner.pid, data, owner.pid)
		}
	}
}

// lockOwner is the server that a lock file names. Values that are not in the file are empty.
type lockOwner struct {
	pid int
	// data is its data directory. memory holds the key and the id of its System V shared memory
	// segment.
	data   string
	memory []string
}

// readLock parses a PostgreSQL lock file. Its lines are the pid (negative: a single-user server),
// the data directory and, as the seventh line of postmaster.pid, the key and id of the shared
// memory.
func readLock(file string) (lockOwner, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return lockOwner{}, err
	}
	var owner lockOwner
	lines := strings.Split(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(lines[0])) // the file may be empty after a crash
	owner.pid = max(pid, -pid)
	if len(lines) > 1 {
		owner.data = lines[1]
	}
	if len(lines) > 6 {
		if memory := strings.Fields(lines[6]); len(memory) == 2 {
			owner.memory = memory
		}
	}
	return owner, nil
}

// isAlive reports whether a process of the server still runs. Sessions can outlive a killed
// postmaster and keep its shared memory. A second server alongside them would destroy the data.
func (o lockOwner) isAlive(data string) bool {
	return hasSharedMemory(o.memory) || servesData(o.pid, data) || o.data != "" && servesData(o.pid, o.data)
}

// hasSharedMemory reports whether a process uses a System V shared memory segment, given by its key
// and id. The id alone is not enough: after a restart of the machine another program may have it.
// It returns false where the system does not list segments: PostgreSQL's own check then prevents
// the start.
func hasSharedMemory(memory []string) bool {
	list, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || len(memory) != 2 {
		return false
	}
	key, _ := strconv.ParseUint(memory[0], 10, 64) // PostgreSQL writes it as an unsigned number
	for line := range strings.Lines(string(list)) {
		// key, shmid, perms, size, cpid, lpid, nattch
		f := strings.Fields(line)
		if len(f) > 6 && f[0] == strconv.Itoa(int(int32(key))) && f[1] == memory[1] {
			return f[6] != "0"
		}
	}
	return false
}

// servesData reports whether a process is a running server of the data directory: its command line
// contains the path, or it is its working directory. Neither is true for a zombie. Without /proc
// every running process counts.
func servesData(pid int, data string) bool {
	if pid == 0 {
		return false
	}
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	process := filepath.Join("/proc", strconv.Itoa(pid))
	command, err := os.ReadFile(filepath.Join(process, "cmdline"))
	if err != nil {
		return runtime.GOOS != "linux"
	}
	if strings.Contains(string(command), data) {
		return true
	}
	workDir, err := os.Stat(filepath.Join(process, "cwd"))
	if err != nil {
		return false
	}
	folder, err := os.Stat(data)
	return err == nil && os.SameFile(workDir, folder)
}
