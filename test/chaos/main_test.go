package main

import (
	"errors"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

func TestMain(m *testing.M) { testkit.Main(m, programs.Remove) }

// programs are those under test and their tools.
var programs site.Programs

// setup starts a site with sources of these settings, and prepares a run in it.
func setup(t *testing.T, settings string) *run {
	t.Helper()
	bin, err := programs.Folder()
	if err != nil {
		t.Fatal(err)
	}
	s, err := site.Start(t.Context(), site.Options{Bin: bin, Settings: settings})
	t.Cleanup(func() {
		if t.Failed() {
			for _, d := range s.Daemons() {
				if d != nil {
					t.Logf("%s said:\n%s", d.Name, d.Said())
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRun(s, 1, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// holds fails unless every promise was kept.
func (r *run) holds(t *testing.T) {
	t.Helper()
	c, err := r.examine(t.Context(), settleWithin)
	if err != nil {
		t.Fatal(err)
	}
	r.report(c)
	if err := errors.Join(c.found()); err != nil {
		t.Error(err)
	}
}
