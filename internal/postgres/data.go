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
	return inst, clearLock(ctx, filepath.Join(dataDir(dir), "postmaster.pid"), dataDir(dir))
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

// clearLock removes a lock file of PostgreSQL (postmaster.pid, or the one beside the socket) that a dead server left. A
// server that outlived a killed parent, and the sessions of a killed server, are given time to end, and then are an error.
// PostgreSQL itself would take the pid of a zombie, or one that another program has by now, for a living server.
func clearLock(ctx context.Context, file, data string) error {
	ctx, cancel := context.WithTimeout(ctx, orphanTimeout)
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
		if !owner.alive(data) {
			return os.Remove(file)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("another PostgreSQL server (pid %d), or a session that it has left, uses %s; "+
				"stop it first: kill -INT %d, and each process that has this folder open", owner.pid, data, owner.pid)
		}
	}
}

// lockOwner is the server that a lock file names. A value that the file does not hold is empty.
type lockOwner struct {
	pid int
	// data is its data directory, memory the key and the id of its System V shared memory segment.
	data   string
	memory []string
}

// readLock reads a lock file of PostgreSQL: a line each for the pid (negative: a single-user server), the data
// directory, and, in the seventh of postmaster.pid, the key and the id of the shared memory.
func readLock(file string) (lockOwner, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return lockOwner{}, err
	}
	var owner lockOwner
	lines := strings.Split(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(lines[0])) // a crash may leave an empty file
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

// alive reports whether a process of the server still runs. Sessions outlive a killed postmaster for a while, and a
// second server beside them would destroy the data: they hold its shared memory.
func (o lockOwner) alive(data string) bool {
	return attached(o.memory) || serves(o.pid, data) || o.data != "" && serves(o.pid, o.data)
}

// attached reports whether a process has a System V shared memory segment, given by its key and id.
// The id alone identifies no segment: after a restart of the machine another program may have it.
// False where the system does not list segments: then PostgreSQL's own check refuses to start.
func attached(memory []string) bool {
	list, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || len(memory) != 2 {
		return false
	}
	key, _ := strconv.ParseUint(memory[0], 10, 64) // which PostgreSQL writes without a sign
	for line := range strings.Lines(string(list)) {
		// key, shmid, perms, size, cpid, lpid, nattch
		f := strings.Fields(line)
		if len(f) > 6 && f[0] == strconv.Itoa(int(int32(key))) && f[1] == memory[1] {
			return f[6] != "0"
		}
	}
	return false
}

// serves reports whether a process lives and is a server of the data directory: it was started with its path, or works
// in it, as each process of a server does. Neither holds of a zombie. Without /proc every living process counts.
func serves(pid int, data string) bool {
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
	works, err := os.Stat(filepath.Join(process, "cwd"))
	if err != nil {
		return false
	}
	folder, err := os.Stat(data)
	return err == nil && os.SameFile(works, folder)
}
