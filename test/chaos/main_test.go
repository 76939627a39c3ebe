package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

func TestMain(m *testing.M) { testkit.Main(m, programs.remove) }

// built are the programs of all tests of this process, built when the first asks for them.
type built struct {
	once sync.Once
	dir  string
	err  error
}

var programs built

func (b *built) folder(ctx context.Context) (string, error) {
	b.once.Do(func() {
		var err error
		if b.dir, err = os.MkdirTemp("", "postern-chaos-"); err == nil {
			err = site.Build(ctx, b.dir, append(site.Daemons(), site.Tools()...))
		}
		b.err = err
	})
	return b.dir, b.err
}

func (b *built) remove() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// setup starts a site with sources of these settings, and prepares a run in it.
func setup(t *testing.T, settings string) *run {
	t.Helper()
	bin, err := programs.folder(context.Background())
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
