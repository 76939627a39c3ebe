// Package testkit gives tests real servers: a database for each test, a JetStream server, and a
// proxy that fails on command. Only tests import it. It skips nothing: without PostgreSQL a test
// fails and says how to install it.
package testkit

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// minParallel is the minimum number of parallel tests, unless -parallel is given. Tests spend much
// of their time waiting for servers.
const minParallel = 4

// restoreDefaultSignals gives child programs of tests the default handling of signals. A process
// that ignores signals, as under nohup, would pass that on to its children. The signals stay
// without effect on this process.
func restoreDefaultSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// Main is called by TestMain of a package. It runs the tests, stops their shared servers, and fails
// when goroutines are left.
func Main(m *testing.M) {
	restoreDefaultSignals()
	flag.Parse()
	parallelSet := false
	flag.Visit(func(f *flag.Flag) { parallelSet = parallelSet || f.Name == "test.parallel" })
	if n := max(minParallel, runtime.GOMAXPROCS(0)); !parallelSet {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // the value is a valid number
	}
	code := m.Run()
	if err := sharedCluster.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit:", err)
			code = 1
		}
	}
	os.Exit(code)
}
