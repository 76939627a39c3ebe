package app

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// ExitStatuses describes the exit statuses of Daemon.
var ExitStatuses = []struct {
	Status  int
	Meaning string
}{
	{daemonDone, "The program stopped normally after SIGINT or SIGTERM, or printed its help or its version."},
	{daemonFailed, "The program failed, or could not start: the last line on standard error has the reason."},
	{daemonUsage, "A flag or an argument is wrong."},
}

const (
	daemonDone   = 0
	daemonFailed = 1
	daemonUsage  = 2
)

// Daemon is the main function of cmd/gateway and cmd/processor. It reads flags and configuration
// and runs until SIGINT or SIGTERM. It returns the exit status, one of ExitStatuses.
func Daemon(name string, o Options, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("config", "", "configuration `FILE` (YAML); POSTERN_... variables override it")
	adminListen := flags.String("admin", "", "admin `ADDRESS`; any other than loopback requires tokens (default "+
		o.AdminListen+")")
	metrics := flags.String("metrics", "", "metrics and health `ADDRESS` for a scraper on another machine (default "+
		"none; /metrics is always on the admin address too)")
	listen := new(string)
	if o.Gateway {
		listen = flags.String("listen", "", "ingest `ADDRESS` (default 127.0.0.1:8080)")
	}
	version := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		if err == flag.ErrHelp { //nolint:errorlint // the flag package returns it as it is
			return daemonDone
		}
		return daemonUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "%s: unexpected argument %q; see %s --help\n", name, flags.Arg(0), name)
		return daemonUsage
	}
	if *version {
		number, revision := telemetry.Version()
		fmt.Println(strings.Join(slices.DeleteFunc([]string{name, number, revision, runtime.Version()},
			func(s string) bool { return s == "" }), " "))
		return daemonDone
	}
	use := config.ForProcessor
	if o.Gateway {
		use = config.ForGateway
	}
	o.Loader = config.NewLoader(*file, use, func(cfg *config.Config) error {
		return Override(cfg, *listen, *adminListen, *metrics)
	})
	return runDaemon(name, o, stderr)
}

// runDaemon sets up signals and a buffered standard error, on which it also reports a failure.
func runDaemon(name string, o Options, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, release := OwnProcess(ctx)
	defer release()
	logCtx, cancelLog := context.WithCancel(ctx)
	defer cancelLog()
	o.OnStopping = cancelLog
	bufferedStderr := telemetry.NewAsyncWriter(logCtx, stderr)
	defer bufferedStderr.Close()
	if err := loadAndRun(ctx, o, bufferedStderr); err != nil {
		fmt.Fprintf(bufferedStderr, "%s: %v\n", name, err)
		return daemonFailed
	}
	return daemonDone
}

// loadAndRun loads the configuration and runs until ctx ends.
func loadAndRun(ctx context.Context, o Options, stderr io.Writer) (err error) {
	o.Hangup = ReloadsOnHangup(ctx)
	if o.Config, err = o.Loader.Load(); err != nil {
		return err
	}
	if o.Logger, err = telemetry.NewLogger(stderr, o.Config.Log.Format, o.Config.Log.Level); err != nil {
		return err
	}
	if err := checkAddresses(ctx, o.Config, o.Gateway, o.AdminListen); err != nil {
		return err
	}
	a, err := New(ctx, o)
	if err != nil && ctx.Err() != nil { // a normal stop before the start was complete
		o.Logger.Info("stopped before it was ready", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// Override replaces configured addresses with those of the command line; "" changes nothing.
func Override(cfg *config.Config, listen, adminListen, metrics string) error {
	if metrics != "" {
		cfg.Admin.MetricsListen = metrics
	}
	if listen != "" {
		cfg.Ingest.Listen = listen
	}
	if adminListen == "" {
		return nil
	}
	cfg.Admin.Listen = adminListen
	return config.CheckAdminListen(adminListen)
}
