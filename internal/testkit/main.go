// Package testkit gives tests real things to run against: a database of their own, a JetStream server, a link that fails on
// command. Only tests import it. Nothing in it skips: without PostgreSQL a test fails and says how to install it.
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

// together is how many parallel tests run at once at least, unless -parallel says: they wait for their servers much of the time.
const together = 4

// ownSignals gives the programs that tests start the default dispositions of signals. A process that was started by one that
// ignores them, as nohup does, would hand that on. The signals stay without effect on this process.
func ownSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// Main is what TestMain of a package calls: it runs the tests, stops what they shared, after included, and fails on goroutines left behind.
func Main(m *testing.M, after ...func() error) {
	ownSignals()
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if n := max(together, runtime.GOMAXPROCS(0)); !said {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // a number is no error
	}
	code := m.Run()
	for _, f := range after {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit:", err)
			code = max(code, 1)
		}
	}
	if err := shared.stop(); err != nil {
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
