package app_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// localOptions returns options of an instance in a folder with its own database and the given
// sources.
func localOptions(t *testing.T, yaml string) app.LocalOptions {
	t.Helper()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	testkit.Must(t, os.WriteFile(file, []byte("database: {url: '"+testkit.Database(t).URL+"'}\n"+yaml), 0o600))
	cfg, err := config.LoadDev(file)
	testkit.Must(t, err)
	cfg.Ingest.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	return app.LocalOptions{Config: cfg, Logger: slog.New(slog.DiscardHandler), Dir: t.TempDir()}
}

// run starts the instance, stops it once it is ready, and returns its addresses and its output.
func run(t *testing.T, o app.LocalOptions) (*config.Instance, string) {
	t.Helper()
	var out bytes.Buffer
	o.Out = &out
	cfg := *o.Config // the start adds the address of the embedded server
	o.Config = &cfg
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	l, err := app.NewLocal(ctx, o)
	testkit.Must(t, err)
	stop()
	testkit.Must(t, l.Run(ctx))
	in, err := config.ReadInstance(o.Dir)
	testkit.Must(t, err)
	return in, out.String()
}

// A loop that ends stops the instance. The instance reports the stop before it waits for anything:
// here for a log that is not read.
func TestLocal_loopEnds_stopsInstance(t *testing.T) {
	t.Parallel()
	o := localOptions(t, "sources: {stripe: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	unread, stopping := context.WithCancel(ctx)
	defer stopping()
	o.OnStopping = stopping
	o.Logger = slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("msg=stopping")) {
			<-unread.Done()
		}
		return len(p), nil
	}), nil))
	l, err := app.NewLocal(ctx, o)
	testkit.Must(t, err)
	testkit.Must(t, l.CloseIngestListener())
	if err := l.Run(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("ended with %v, context with %v", err, ctx.Err())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func occupied(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestLocal_restart_keepsStreamPort(t *testing.T) {
	t.Parallel()
	o := localOptions(t, "sources: {live: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}")
	first, told := run(t, o)
	for _, want := range []string{"/webhooks/live  (stripe)", "postern send stripe invoice.paid --source live"} {
		if !strings.Contains(told, want) {
			t.Errorf("%q is missing in the output:\n%s", want, told)
		}
	}
	if second, _ := run(t, o); second.NATSURL != first.NATSURL {
		t.Errorf("stream at %s, before the restart at %s", second.NATSURL, first.NATSURL)
	}
	_, address, _ := strings.Cut(first.NATSURL, "@")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	testkit.Must(t, err)
	defer l.Close()
	if third, _ := run(t, o); third.NATSURL == first.NATSURL {
		t.Error("the stream uses a port that is in use")
	}
}

// A used address is reported before anything starts, with the flag that chooses another.
func TestLocal_usedAddress_isReportedBeforeStart(t *testing.T) {
	t.Parallel()
	busy := occupied(t)
	address := busy.Addr().String()
	for name, c := range map[string]struct {
		change func(*app.LocalOptions)
		want   string
	}{
		"ingest": {func(o *app.LocalOptions) { o.Config.Ingest.Listen = address },
			"listen for ingest on " + address + ": address already in use; choose another address with --listen"},
		"admin": {func(o *app.LocalOptions) { o.Config.Admin.Listen = address },
			"listen for admin on " + address + ": address already in use; choose another address with --admin"},
		"nats": {func(o *app.LocalOptions) { o.NATSPort = busy.Addr().(*net.TCPAddr).Port },
			"choose another port with --nats-port"},
		"runs already": {func(o *app.LocalOptions) {
			o.Config.Ingest.Listen = address
			if err := config.WriteInstance(o.Dir, &config.Instance{IngestURL: "http://" + address}); err != nil {
				t.Error(err)
			}
		}, "already running?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := app.LocalOptions{Config: config.Default(), Logger: slog.New(slog.DiscardHandler), Dir: t.TempDir()}
			o.Config.Ingest.Listen, o.Config.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
			c.change(&o)
			if _, err := app.NewLocal(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestDaemon_usedAddress_namesFlag(t *testing.T) {
	t.Parallel()
	address := occupied(t).Addr().String()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	testkit.Must(t, os.WriteFile(file, []byte("database: {url: postgres:///nowhere}\n"), 0o600))
	for name, c := range map[string]struct {
		gateway bool
		args    []string
		flag    string
	}{
		"gateway":           {true, []string{"--listen", address, "--admin", "127.0.0.1:0"}, "--listen"},
		"gateway's admin":   {true, []string{"--listen", "127.0.0.1:0", "--admin", address}, "--admin"},
		"processor's admin": {false, []string{"--admin", address}, "--admin"},
		"metrics":           {false, []string{"--admin", "127.0.0.1:0", "--metrics", address}, "--metrics"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			status := app.Daemon("postern", app.Options{Gateway: c.gateway, Processor: !c.gateway},
				append([]string{"--config", file}, c.args...), &stderr)
			if want := address + ": address already in use; choose another address with " + c.flag; status != 1 ||
				!strings.Contains(stderr.String(), want) {
				t.Errorf("status %d, %s; want %q in it", status, stderr.String(), want)
			}
		})
	}
}
