package site

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The report of an ended program has the complete output of its last start and its exit status.
func TestProcess_exitReport_holdsOutputOfTheLastStart(t *testing.T) {
	t.Parallel()
	p := &Process{Name: "one", Log: filepath.Join(t.TempDir(), "log"), program: "/bin/sh",
		args: []string{"-c", `echo "start $START begins"; head -c 9000 /dev/zero | tr '\0' x; exit 3`}}
	if err := p.ExitReport(); err != nil {
		t.Errorf("before its first start: %v", err)
	}
	for _, start := range []string{"START=1", "START=2"} {
		p.env = []string{start}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.done:
		case <-time.After(time.Minute):
			t.Fatal("the program does not end")
		}
	}
	err := p.ExitReport()
	if err == nil || !strings.Contains(err.Error(), "one has ended, exit status 3, with the output:\nstart 2 "+
		"begins\n"+strings.Repeat("x", 9000)) || strings.Contains(err.Error(), "start 1") {
		t.Errorf("%v", err)
	}
}
