package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// builds has a function for each set of packages that this process has built. It is a package
// variable for the same reason as sharedCluster.
var builds sync.Map

// Programs builds programs of this module, given by their packages ("cmd/gateway"), and returns
// their folder, bin/test of the checkout. All test binaries share it, so that each program is
// linked once and not by each of them. A process checks only once that they are up to date.
func Programs(packages ...string) (dir string, err error) {
	once, _ := builds.LoadOrStore(strings.Join(packages, " "),
		sync.OnceValues(func() (string, error) { return buildPrograms(packages) }))
	return once.(func() (string, error))()
}

func buildPrograms(packages []string) (dir string, err error) {
	if dir, err = buildDir(); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	args := []string{"build", "-buildvcs=false", "-o", dir + "/"}
	for _, p := range packages {
		args = append(args, module+p)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
}

// buildDir returns bin/test of the checkout, which all test binaries share.
func buildDir() (string, error) {
	root, err := os.Getwd()
	for err == nil && !isRoot(root) {
		if filepath.Dir(root) == root {
			return "", errors.New("the working directory is not in a checkout of this module")
		}
		root = filepath.Dir(root)
	}
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "bin", "test")
	return dir, os.MkdirAll(dir, 0o755)
}

// isRoot reports whether a directory has the module file of this module.
func isRoot(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module "+strings.TrimSuffix(module, "/")+"\n")
}

// lock waits until this process holds the lock of a file, which it creates.
func lock(name string) (unlock func() error, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
	}
	return f.Close, nil // closing unlocks
}
