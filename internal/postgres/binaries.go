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

// ErrNoServer is the error of a machine without a usable PostgreSQL server binary.
var ErrNoServer = errors.New("no PostgreSQL server binaries found; run: make prerequisites " +
	"(Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17)")

// installation is a directory with initdb and postgres of one version.
type installation struct {
	bin   string
	major int
}

// binaryPlaces are where packages put the server: Debian, Red Hat, Homebrew on both kinds of Mac.
func binaryPlaces() []string {
	return []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
		"/opt/homebrew/opt/postgresql/bin", "/usr/local/opt/postgresql/bin",
	}
}

// findInstallation picks the newest usable installation, or the newest of the wanted major version where that is not 0 (a
// data directory can only be served by the version that made it).
func findInstallation(major int) (installation, error) {
	var best installation
	for _, dir := range candidates() {
		found, err := inspect(dir)
		if err == nil && found.major >= MinVersion && found.major > best.major && (major == 0 || found.major == major) {
			best = found
		}
	}
	switch {
	case best.bin != "":
		return best, nil
	case major != 0:
		return best, fmt.Errorf("the data was made by PostgreSQL %d, whose server is not installed: install it, or remove the data: %w", major, ErrNoServer)
	}
	return best, fmt.Errorf("need PostgreSQL %d or newer: %w", MinVersion, ErrNoServer)
}

func candidates() []string {
	var dirs []string
	for _, pattern := range binaryPlaces() {
		found, err := filepath.Glob(pattern)
		if err == nil {
			dirs = append(dirs, found...)
		}
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real // Debian's link on PATH; initdb lies beside the real file
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	return dirs
}

// inspect asks the binary itself for its version: "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)".
func inspect(dir string) (installation, error) {
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

// majorVersion reads the leading digits of "15.18 (Debian ...)", "18beta1", "17".
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
