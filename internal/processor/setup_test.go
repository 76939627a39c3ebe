package processor_test

import (
	"os"
	"testing"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
)

var must, equal, execSQL = testkit.Must, testkit.Equal, testkit.ExecSQL

// errOf returns the error of a call whose other result is not needed.
func errOf[T any](_ T, err error) error { return err }

// testBundle is a log whose events processors apply.
type testBundle struct{ *applied.Log }

func setup(t *testing.T) *testBundle {
	t.Helper()
	return &testBundle{applied.New(t)}
}

// options returns the options of a processor without a stream. A non-nil provider replaces the
// simulated one.
func (b *testBundle) options(t *testing.T, p provider.Provider) processor.Options {
	return processor.Options{Settings: processor.DefaultSettings, ID: t.Name(), Options: b.Options(p)}
}

func newProcessor(t *testing.T, o processor.Options) *processor.Processor {
	t.Helper()
	p, err := processor.New(o)
	must(t, err)
	return p
}

// processor returns a processor without a stream. A test may use several.
func (b *testBundle) processor(t *testing.T, p provider.Provider, tune func(*processor.Settings)) *processor.Processor {
	t.Helper()
	o := b.options(t, p)
	if tune != nil {
		tune(&o.Settings)
	}
	return newProcessor(t, o)
}

func TestMain(m *testing.M) {
	if childJob := os.Getenv(childVariable); childJob != "" {
		os.Exit(runChild(childJob))
	}
	testkit.Main(m)
}
