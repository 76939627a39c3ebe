package site

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A program that has ended by itself tells all that it said in its last life, and how it ended.
func TestEndedTellsTheLastLife(t *testing.T) {
	t.Parallel()
	p := &Process{Name: "one", Log: filepath.Join(t.TempDir(), "log"), program: "/bin/sh", args: []string{"-c", `echo "life $LIFE begins"; head -c 9000 /dev/zero | tr '\0' x; exit 3`}}
	if err := p.Ended(); err != nil {
		t.Errorf("before its first start: %v", err)
	}
	for _, life := range []string{"LIFE=1", "LIFE=2"} {
		p.env = []string{life}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.done:
		case <-time.After(time.Minute):
			t.Fatal("it does not end")
		}
	}
	err := p.Ended()
	if err == nil || !strings.Contains(err.Error(), "one has ended by itself, exit status 3, and said:\nlife 2 begins\n"+strings.Repeat("x", 9000)) || strings.Contains(err.Error(), "life 1") {
		t.Errorf("%v", err)
	}
}
