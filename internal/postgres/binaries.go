package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoServer means that the machine has no usable PostgreSQL server binary.
var ErrNoServer = errors.New("no PostgreSQL server binaries found; run: make prerequisites " +
	"(Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17)")

// installation is a directory with initdb and postgres of one version.
type installation struct {
	bin   string
	major int
}

// binaryPatterns are the directories of packages: Debian, Red Hat, and Homebrew on both kinds of
// Mac.
func binaryPatterns() []string {
	return []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
		"/opt/homebrew/opt/postgresql/bin", "/usr/local/opt/postgresql/bin",
	}
}

// findInstallation returns the newest usable installation, or the newest of the given major version
// if it is not 0: only the version that created a data directory can serve it.
func findInstallation(major int) (installation, error) {
	var best installation
	for _, dir := range candidates() {
		found, err := readInstallation(dir)
		if err == nil && found.major >= minVersion && found.major > best.major && (major == 0 || found.major == major) {
			best = found
		}
	}
	switch {
	case best.bin != "":
		return best, nil
	case major != 0:
		return best, fmt.Errorf("PostgreSQL %d created the data, but its server is not installed: install it, or "+
			"remove the data: %w", major, ErrNoServer)
	}
	return best, fmt.Errorf("need PostgreSQL %d or newer: %w", minVersion, ErrNoServer)
}

// ServerVersion returns the major version of the server that a new cluster gets.
func ServerVersion() (int, error) {
	inst, err := findInstallation(0)
	return inst.major, err
}

func candidates() []string {
	var dirs []string
	for _, pattern := range binaryPatterns() {
		found, err := filepath.Glob(pattern)
		if err == nil {
			dirs = append(dirs, found...)
		}
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real // Debian's link in PATH; initdb is next to the real file
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	return dirs
}

// readInstallation runs the binary to get its version: "postgres (PostgreSQL) 15.18 (Debian
// 15.18-0+deb12u1)".
func readInstallation(dir string) (installation, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return installation{}, err
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return installation{}, fmt.Errorf("run postgres --version in %s: %w", dir, err)
	}
	_, version, _ := strings.Cut(string(out), ") ")
	major, err := majorVersion(version)
	return installation{bin: dir, major: major}, err
}

// majorVersion parses the leading digits of "15.18 (Debian ...)", "18beta1", "17".
func majorVersion(version string) (int, error) {
	digits := version
	if end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = version[:end]
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0, fmt.Errorf("read PostgreSQL version %q: %w", version, err)
	}
	return n, nil
}
