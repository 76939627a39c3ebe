package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// The ways through a list of objects that are all as the mirror has them.
const (
	// Fetch only gets and parses the pages, one after the other.
	Fetch = "fetch"
	// Sweep compares the objects with the mirror.
	Sweep = "sweep"
	// SweepFew compares a tenth of them, to see whether memory grows.
	SweepFew = "sweep-a-tenth"
)

// Sweep measures how fast so many objects, all equal, are compared with the mirror, beside a loop
// that only gets and parses the same pages.
func (s *Suite) Sweep(ctx context.Context, row string, rounds, objects int) (samples []Sample, err error) {
	w, err := s.sweeping(ctx, objects)
	if w != nil {
		defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	targets := []string{Fetch, Sweep, SweepFew}
	for round := range rounds {
		for i := range targets {
			target := targets[(i+round)%len(targets)]
			sample, err := w.through(ctx, target)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, target, err)
			}
			sample.Row, sample.Target, sample.Round = row, target, round
			samples = append(samples, sample)
			s.log.Info(row, "target", target, "round", round+1, "of", rounds, "seconds", sample.Seconds, "rate",
				int(sample.Rate), "cpu", fmt.Sprintf("%.1f", sample.ServerCPU()),
				"memory", sample.Memory, "more", sample.More)
		}
	}
	return samples, nil
}

// swept is an account and a mirror of it.
type swept struct {
	s        *Suite
	list     *listing
	database string
	file     string
}

// sweeping makes an account of so many objects and its mirror. What it has made comes along where
// it fails.
func (s *Suite) sweeping(ctx context.Context, objects int) (w *swept, err error) {
	list, err := newListing(objects)
	if err != nil {
		return nil, err
	}
	w = &swept{s: s, list: list}
	if w.database, err = s.mirrored(ctx, w.list); err != nil {
		return w, err
	}
	if w.file, err = w.configure(); err != nil {
		return w, err
	}
	return w, s.m.Settle(ctx)
}

func (w *swept) close(ctx context.Context) error {
	err := w.list.close()
	if w.database != "" {
		err = errors.Join(err, w.s.m.DropDatabase(ctx, w.database))
	}
	return err
}

// configure writes the configuration: as shipped, but for addresses and the most calls a second
// that can be set.
func (w *swept) configure() (string, error) {
	text := fmt.Sprintf("database:\n  url: %q\nnats:\n  url: %q\nadmin:\n  listen: 127.0.0.1:0\nsources:\n",
		w.s.m.DatabaseURL(w.database), w.s.m.NATS())
	for i, name := range sweptSources {
		text += fmt.Sprintf("  %s:\n    provider: stripe\n    secrets:\n      - name: bench\n        value: %s\n    "+
			"api:\n      base_url: %s\n      key:\n        value: rk_live_of_the_benchmark\n      rate: 10000\n",
			name, secret, w.list.address(i == 1))
	}
	w.s.files++
	file := filepath.Join(w.s.m.Dir, fmt.Sprintf("postern-%d.yaml", w.s.files))
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// through goes through the list once. It counts the pages and all other calls.
func (w *swept) through(ctx context.Context, target string) (sample Sample, err error) {
	pages, others := w.list.pages.Load(), w.list.others.Load()
	switch target {
	case Fetch:
		sample, err = fetch(ctx, w.list.address(false))
		if err == nil && sample.Events != int64(w.list.objects) {
			err = fmt.Errorf("the list told of %d objects, want %d", sample.Events, w.list.objects)
		}
	case Sweep:
		sample, err = w.sweep(ctx, sweptSources[0], int64(w.list.objects), nil)
	case SweepFew:
		sample, err = w.sweep(ctx, sweptSources[1], int64(w.list.objects/10), nil)
	}
	sample.more("calls", float64(w.list.pages.Load()-pages+w.list.others.Load()-others))
	sample.more("calls_beside_pages", sample.More["calls"]-float64((sample.Events+listPage-1)/listPage))
	return sample, err
}

// fetch gets and parses page after page, as whoever does no more would write it.
func fetch(ctx context.Context, address string) (sample Sample, err error) {
	began := time.Now()
	for cursor, more := "", true; more; {
		page := struct {
			Data []map[string]any `json:"data"`
			More bool             `json:"has_more"`
		}{}
		body, err := get(ctx, address+"/v1/customers?limit="+fmt.Sprint(listPage)+cursor)
		if err != nil {
			return sample, err
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return sample, err
		}
		if more = page.More; more {
			cursor = fmt.Sprintf("&starting_after=%v", page.Data[len(page.Data)-1]["id"])
		}
		sample.Events += int64(len(page.Data))
	}
	sample.Seconds = time.Since(began).Seconds()
	sample.Rate = float64(sample.Events) / sample.Seconds
	return sample, nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	return io.ReadAll(res.Body)
}

// sweep has all objects of a source compared by a processor of its own, which look may watch
// meanwhile. All of them must be equal.
func (w *swept) sweep(ctx context.Context, source string, want int64, look func(admin string) error) (sample Sample,
	err error) {
	s := w.s
	r := &running{database: w.database}
	if r.process, _, r.admin, err = s.m.Serve(ctx, "processor", s.trace(r), "--config", w.file); err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, r.process.Stop()) }()
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	watched := make(chan error, 1)
	go func() {
		if look == nil {
			watched <- nil
			return
		}
		watched <- look(r.admin)
	}()
	out := &lastJSON{}
	_, err = s.m.Tool(ctx, out, "postern", "reconcile", source, "--objects", "--type", "customer", "--full", "--config",
		w.file, "-o", "json")
	if err := errors.Join(err, <-watched); err != nil {
		return sample, err
	}
	run, err := out.run()
	if err != nil {
		return sample, err
	}
	if run.Status != "done" || run.Counts["processed"] != want || run.Counts["equal"] != want {
		return sample, fmt.Errorf("run %d is %s with %v, want %d equal objects", run.Run, run.Status, run.Counts, want)
	}
	sample = Sample{Events: want, Seconds: run.EndedAt.Sub(run.StartedAt).Seconds()}
	sample.Rate = float64(want) / sample.Seconds
	return sample, s.after(ctx, r, before, &sample)
}

// ProfileSweep has a look at the processor while it compares objects with the mirror.
func (s *Suite) ProfileSweep(ctx context.Context, objects int, look Look) (err error) {
	w, err := s.sweeping(ctx, objects)
	if w != nil {
		defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return err
	}
	sample, err := w.sweep(ctx, sweptSources[0], int64(objects),
		func(admin string) error { return look(ctx, Sweep, admin) })
	s.log.Info(Sweep, "seconds", sample.Seconds, "rate", int(sample.Rate))
	return err
}
