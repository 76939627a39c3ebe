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
	const module = "github.com/postern-gateway/postern"
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	dir = filepath.Join(strings.TrimSpace(string(root)), "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // closing unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", dir, err)
	}
	args := []string{"build", "-buildvcs=false", "-o", dir + "/"}
	for _, p := range packages {
		args = append(args, module+"/"+p)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
}
