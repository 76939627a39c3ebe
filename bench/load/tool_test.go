package load

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestTool_programEnds_returnsUsageOrStderr(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ran, err := (&Machine{}).Tool(t.Context(), &out, "/bin/sh", "-c",
		"x=0; while [ $x -lt 200000 ]; do x=$((x+1)); done; echo $x")
	if err != nil || out.String() != "200000\n" {
		t.Fatalf("%q, %v", out.String(), err)
	}
	if ran.Took <= 0 || ran.CPU <= time.Millisecond || ran.CPU > 2*ran.Took || ran.Peak < 100<<10 || ran.Peak > 1<<30 {
		t.Errorf("%+v", ran)
	}
	if _, err := (&Machine{}).Tool(t.Context(), &out, "/bin/sh", "-c", "echo no such thing >&2; exit 3"); err == nil ||
		!strings.Contains(err.Error(), "no such thing") {
		t.Errorf("%v", err)
	}
}
