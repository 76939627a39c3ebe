package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/postern-gateway/postern/bench/load"
)

// The targets that accept deliveries.
const (
	Verify    = "verify"
	Bare      = "bare"
	Afternoon = "afternoon"
	Postern   = "postern"
)

// secret signs all deliveries.
const secret = "whsec_of_the_benchmark"

// running is a started target.
type running struct {
	process   *load.Process
	processor *load.Process // beside a gateway
	database  string
	// file is the configuration of gateway and processor.
	file string
	// traces is the sink of its traces, nil if they are off. traced is what the sink had received
	// before its start.
	traces *load.Sink
	traced load.Traced
}

func (r *running) processes() []*load.Process {
	if r.processor != nil {
		return []*load.Process{r.process, r.processor}
	}
	return []*load.Process{r.process}
}

func (r *running) stop() error {
	var errs []error
	for _, p := range r.processes() {
		errs = append(errs, p.Stop())
	}
	return errors.Join(errs...)
}

// start starts a target with a database.
func (s *Suite) start(ctx context.Context, target string, shape Shape) (r *running, err error) {
	r = &running{database: shape.Database}
	if !shape.InPlace {
		if r.database, err = s.m.NewDatabase(ctx, shape.Database); err != nil {
			return nil, err
		}
	}
	env := []string{"SECRET=" + secret}
	url := s.m.DatabaseURL(r.database)
	switch target {
	case Verify:
		r.process, err = s.m.Serve(ctx, target, env)
	case Bare:
		limits := s.defaults.Ingest
		r.process, err = s.m.Serve(ctx, target, env, "-database", url, "-batch",
			fmt.Sprint(limits.BatchMax), "-bytes", fmt.Sprint(int64(limits.BatchBytes)),
			"-writers", fmt.Sprint(limits.Writers), "-queue", fmt.Sprint(limits.Queue))
	case Afternoon:
		r.process, err = s.m.Serve(ctx, target, env, "-database", url, "-nats", s.m.NATS())
	case Postern:
		var file string
		if file, err = s.configure(url, shape.Sources); err != nil {
			return nil, err
		}
		env, r.file = s.trace(r), file
		r.process, err = s.m.Serve(ctx, "gateway", env, "--config", file)
		if err == nil && shape.Applied {
			r.processor, err = s.m.Serve(ctx, "processor", env, "--config", file)
		}
	default:
		err = fmt.Errorf("no target %q", target)
	}
	return r, err
}

// configure writes the configuration of gateway and processor: defaults except for addresses and
// for limits of the stream that are large enough for a run.
func (s *Suite) configure(database string, sources int) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "database:\n  url: %q\nnats:\n  url: %q\nstream:\n  max_bytes: 16GiB\n  max_messages: "+
		"10000000\ningest:\n  listen: 127.0.0.1:0\n  drain_delay: 1ms\nadmin:\n  listen: 127.0.0.1:0\nsources:\n",
		database, s.m.NATS())
	for _, name := range sourceNames(sources) {
		fmt.Fprintf(&b, "  %s:\n    provider: stripe\n    secrets:\n      - name: bench\n        value: %s\n", name,
			secret)
	}
	return s.writeConfig(b.String())
}

// writeConfig writes a configuration and returns the name of its file.
func (s *Suite) writeConfig(text string) (string, error) {
	s.files++
	file := filepath.Join(s.m.Dir, fmt.Sprintf("postern-%d.yaml", s.files))
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// startProcessor starts a processor on a database as the target.
func (s *Suite) startProcessor(ctx context.Context, database string) (r *running, err error) {
	r = &running{database: database}
	if r.file, err = s.configure(s.m.DatabaseURL(database), 1); err != nil {
		return nil, err
	}
	r.process, err = s.m.Serve(ctx, "processor", s.trace(r), "--config", r.file)
	return r, err
}

// startOneByOne starts the reference OneByOne on a database.
func (s *Suite) startOneByOne(ctx context.Context, database string) (r *running, err error) {
	r = &running{database: database}
	r.process, err = s.m.Serve(ctx, oneByOne, nil, "-database", s.m.DatabaseURL(database), "-nats", s.m.NATS(),
		"-goroutines", fmt.Sprint(s.defaults.Processor.Workers))
	return r, err
}

func sourceNames(n int) []string {
	names := make([]string, max(n, 1))
	for i := range names {
		names[i] = fmt.Sprintf("stripe%d", i)
	}
	return names
}
