package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// linked is the variable that a build sets, by package and name, and its value.
var linked = regexp.MustCompile(`-X github\.com/postern-gateway/postern/(\S+)\.(\w+)=(\S*)"`)

func TestMakefile_programs_nameCommitWhereGitAnswers(t *testing.T) {
	t.Parallel()
	if _, err := os.ReadFile("../../Makefile"); err != nil { // so that a cached result is not taken after a change
		t.Fatal(err)
	}
	for git, commit := range map[string]string{"echo 0123456789abcdef-dirty": "0123456789abcdef-dirty", "echo dubious ownership >&2; exit 128": ""} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\n"+git+"\n"), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "make", "--dry-run", "--no-print-directory", "-C", "../..", "build", "dev")
		cmd.Env = append(serveEnvironment(), "PATH="+dir+":"+os.Getenv("PATH"), "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		set := linked.FindAllStringSubmatch(string(out), -1)
		if len(set) != 2 || strings.Count(string(out), "go build -buildvcs=false ") != 2 {
			t.Fatalf("build and dev do not both set the commit alone: %s", out)
		}
		for _, variable := range set {
			source, err := os.ReadFile(filepath.Join("../..", variable[1], "version.go"))
			if err != nil || !strings.Contains(string(source), "\nvar "+variable[2]+" string\n") || variable[3] != commit {
				t.Errorf("git says %q: %v is set: %v", git, variable[1:], err)
			}
		}
		told, built := strings.Index(string(out), "about two minutes the first time"), strings.Index(string(out), "-o bin/dev/postern ")
		if told < 0 || told > built {
			t.Errorf("make dev does not say how long it builds before it does: %s", out)
		}
	}
}
