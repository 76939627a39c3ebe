// Command mutants tests the tests. It builds the product once per mutant, with one deliberate
// fault, and runs the tests that must notice it: make mutants. It writes the table of
// docs/reference/mutants.md, which names the tests that noticed each mutant. Each mutant is built
// from an overlay of the files that it changes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// edit replaces code that has the shape of old. The product must have exactly one such place.
type edit struct{ old, new string }

// mutant is the product with one deliberate fault.
type mutant struct {
	// group is the part of the product with the fault. name says what the faulty product does.
	group, name string
	edits       []edit
	// tests are packages below the root of the module, such as "internal/events Append". The text
	// after the space is the pattern of the tests to run. Without it all tests of the package run.
	tests []string
}

func main() {
	only := flag.String("only", "", "run only the mutants whose group and name contain this text")
	out := flag.String("o", "", "write the table to this file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, out string) error {
	in, err := sources(".")
	if err != nil {
		return err
	}
	var survived []string
	var table strings.Builder
	table.WriteString("| part | the mutant | seconds | noticed by |\n| --- | --- | --- | --- |\n")
	for _, m := range mutants() {
		if !strings.Contains(m.group+" "+m.name, only) {
			continue
		}
		began := time.Now()
		by, err := m.noticed(ctx, in)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", m.group, m.name, err)
		}
		if by == "" {
			survived, by = append(survived, m.group+": "+m.name), "**no test**"
		}
		fmt.Fprintf(&table, "| %s | %s | %.0f | %s |\n", m.group, m.name, time.Since(began).Seconds(), by)
		fmt.Printf("%s: %s: %s (%.0f s)\n", m.group, m.name, by, time.Since(began).Seconds())
	}
	if out != "" {
		if err := os.WriteFile(out, []byte(table.String()), 0o600); err != nil {
			return err
		}
	}
	if len(survived) > 0 {
		return fmt.Errorf("no test noticed %d mutants: %s", len(survived), strings.Join(survived, "; "))
	}
	return nil
}

// testWithin limits the tests of one package.
const testWithin = 10 * time.Minute

var (
	failed   = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	panicked = regexp.MustCompile(`(?m)^panic: (.*)|^fatal error: (.*)`)
)

// noticed returns the tests that fail with the mutant, "" if none does. It returns an error if the
// mutant does not build.
func (m mutant) noticed(ctx context.Context, in []*source) (by string, err error) {
	changed, err := m.apply(in)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "postern-mutant-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	overlay, err := writeOverlay(dir, changed)
	if err != nil {
		return "", err
	}
	for _, tests := range m.tests {
		pkg, pattern, _ := strings.Cut(tests, " ")
		binary := filepath.Join(dir, "broken.test")
		if text, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "-overlay", overlay,
			"./"+pkg).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", pkg, err, text)
		}
		cmd := exec.CommandContext(ctx, binary, "-test.failfast", "-test.timeout", testWithin.String(), "-test.run",
			pattern)
		cmd.Dir = pkg
		cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, time.Minute
		text, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err == nil {
			continue
		}
		var names []string
		for _, found := range failed.FindAllStringSubmatch(string(text), -1) {
			names = append(names, found[1])
		}
		if found := panicked.FindStringSubmatch(string(text)); len(names) == 0 && found != nil {
			names = append(names, "all: "+found[0])
		}
		if len(names) == 0 {
			return "", fmt.Errorf("tests of %s fail without a failed test: %w\n%s", pkg, err, text)
		}
		slices.Sort(names)
		return pkg + ": " + strings.Join(slices.Compact(names), ", "), nil
	}
	return "", nil
}

// writeOverlay writes changed files into a folder, and the overlay file that makes go build use
// them.
func writeOverlay(dir string, changed map[string]string) (file string, err error) {
	replace := map[string]string{}
	for path, text := range changed {
		from, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, fmt.Sprintf("edit%d.go", len(replace)))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[from] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}
