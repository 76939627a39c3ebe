package reference_test

import (
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

// Whatever changes what is measured changes the hash, and tests do not.
func TestHash_anyChange_differs(t *testing.T) {
	t.Parallel()
	hash := func(dir fstest.MapFS) string {
		t.Helper()
		h, err := hashSources(dir)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	base := hash(fstest.MapFS{"a/main.go": file("package main"), "b/main.go": file("package b")})
	for name, changed := range map[string]fstest.MapFS{
		"text":    {"a/main.go": file("package main "), "b/main.go": file("package b")},
		"renamed": {"a/other.go": file("package main"), "b/main.go": file("package b")},
		"swapped": {"a/main.go": file("package b"), "b/main.go": file("package main")},
		"more":    {"a/main.go": file("package main"), "b/main.go": file("package b"), "c.go": file("")},
		"fewer":   {"a/main.go": file("package main")},
	} {
		if hash(changed) == base {
			t.Errorf("%s: the same hash", name)
		}
	}
	tests := fstest.MapFS{"a/main.go": file("package main"), "b/main.go": file("package b"),
		"a/main_test.go": file("x"), "README": file("x")}
	if hash(tests) != base {
		t.Error("a test or another file changes the hash")
	}
}
