package load

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// role is the variable that makes this test binary run as a child process instead of running tests.
const role = "BENCH_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "parent":
		parentOfBurner()
	case "burner":
		burn(400 * time.Millisecond)
		_, _ = os.Stdout.WriteString("burnt\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
	default:
		os.Exit(m.Run())
	}
}

// parentOfBurner uses hardly any processor time itself. Its child ends after the first byte on
// standard input, the parent after the second.
func parentOfBurner() {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), role+"=burner")
	child.Stdout, child.Stdin = os.Stdout, os.Stdin
	if err := child.Run(); err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString("ended\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// burn uses the given processor time, however busy the machine is.
func burn(d time.Duration) {
	for {
		for began := time.Now(); time.Since(began) < 10*time.Millisecond; {
		}
		if f, err := stat(os.Getpid()); err != nil || ticks(f, user, system) >= d {
			return
		}
	}
}

// familyCPU counts children, both running and ended. CPU counts only the process itself.
func TestFamilyCPU_children_countRunningAndEnded(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=parent")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, state := range []string{"burnt", "ended"} {
		if !lines.Scan() || lines.Text() != state {
			t.Fatalf("the child printed %q, want %q", lines.Text(), state)
		}
		family, err := familyCPU(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		own, err := (&Process{cmd: cmd}).CPU()
		if err != nil {
			t.Fatal(err)
		}
		if family < 400*time.Millisecond || family > time.Second || own > 200*time.Millisecond {
			t.Errorf("%s: the family used %s, the parent %s; the child burnt 400 ms", state, family, own)
		}
		if memory, err := familyMemory(cmd.Process.Pid); err != nil || memory < 1<<20 {
			t.Errorf("%s: the family has %d bytes resident, %v", state, memory, err)
		}
		if _, err := io.WriteString(in, "."); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}
