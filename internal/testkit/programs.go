package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Programs builds programs of this module, given by their packages ("cmd/gateway"), and returns
// their folder, bin/test of the checkout. All test binaries share it, so that each program is
// linked once and not by each of them.
func Programs(packages ...string) (dir string, err error) {
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
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", strings.TrimSuffix(module, "/")).Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "bin", "test")
	return dir, os.MkdirAll(dir, 0o755)
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
