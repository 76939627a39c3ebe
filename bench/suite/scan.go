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

// The targets of ObjectScan. All objects are equal in the list and in the mirror.
const (
	// Fetch only gets and parses the pages, one after the other.
	Fetch = "fetch"
	// Scan compares the objects with the mirror.
	Scan = "object-scan"
	// ScanFew compares a tenth of them, to show whether memory grows with the number of objects.
	ScanFew = "object-scan-a-tenth"
)

// ObjectScan measures how fast an object scan compares unchanged objects with the mirror. It
// compares that with a loop that only gets and parses the same pages.
func (s *Suite) ObjectScan(ctx context.Context, row string, rounds, objects int) (samples []Sample, err error) {
	w, err := s.newScannedAccount(ctx, objects)
	if w != nil {
		defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	targets := []string{Fetch, Scan, ScanFew}
	for round := range rounds {
		for i := range targets {
			target := targets[(i+round)%len(targets)]
			sample, err := w.measure(ctx, target)
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

// scannedAccount is an account and a mirror of it.
type scannedAccount struct {
	s        *Suite
	list     *listing
	database string
	file     string
}

// newScannedAccount creates an account with that many objects, and its mirror. If it fails, it
// returns what it has created so far.
func (s *Suite) newScannedAccount(ctx context.Context, objects int) (w *scannedAccount, err error) {
	list, err := newListing(objects)
	if err != nil {
		return nil, err
	}
	w = &scannedAccount{s: s, list: list}
	if w.database, err = s.mirrored(ctx, w.list); err != nil {
		return w, err
	}
	if w.file, err = w.configure(); err != nil {
		return w, err
	}
	return w, s.m.Reset(ctx)
}

func (w *scannedAccount) close(ctx context.Context) error {
	err := w.list.close()
	if w.database != "" {
		err = errors.Join(err, w.s.m.DropDatabase(ctx, w.database))
	}
	return err
}

// configure writes the configuration: defaults except for addresses and api.rate, which is at its
// maximum.
func (w *scannedAccount) configure() (string, error) {
	text := fmt.Sprintf("database:\n  url: %q\nnats:\n  url: %q\nadmin:\n  listen: 127.0.0.1:0\nsources:\n",
		w.s.m.DatabaseURL(w.database), w.s.m.NATS())
	for i, name := range scannedSources {
		text += fmt.Sprintf("  %s:\n    provider: stripe\n    secrets:\n      - name: bench\n        value: %s\n    "+
			"api:\n      base_url: %s\n      key:\n        value: rk_live_of_the_benchmark\n      rate: 10000\n",
			name, secret, w.list.address(i == 1))
	}
	w.s.files++
	file := filepath.Join(w.s.m.Dir, fmt.Sprintf("postern-%d.yaml", w.s.files))
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// measure reads the list once as a target does. It counts the pages and all other calls.
func (w *scannedAccount) measure(ctx context.Context, target string) (sample Sample, err error) {
	pages, others := w.list.pages.Load(), w.list.others.Load()
	switch target {
	case Fetch:
		sample, err = fetch(ctx, w.list.address(false))
		if err == nil && sample.Events != int64(w.list.objects) {
			err = fmt.Errorf("the list has %d objects, want %d", sample.Events, w.list.objects)
		}
	case Scan:
		sample, err = w.scan(ctx, scannedSources[0], int64(w.list.objects), nil)
	case ScanFew:
		sample, err = w.scan(ctx, scannedSources[1], int64(w.list.objects/10), nil)
	}
	sample.more("calls", float64(w.list.pages.Load()-pages+w.list.others.Load()-others))
	sample.more("calls_beside_pages", sample.More["calls"]-float64((sample.Events+listPage-1)/listPage))
	return sample, err
}

// fetch gets and parses page after page, as a minimal program would.
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

// scan makes a new processor compare all objects of a source. All must be equal. take, if not nil,
// takes profiles meanwhile.
func (w *scannedAccount) scan(ctx context.Context, source string, want int64,
	take func(admin string) error) (sample Sample,
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
	profiled := make(chan error, 1)
	go func() {
		if take == nil {
			profiled <- nil
			return
		}
		profiled <- take(r.admin)
	}()
	out := &lastJSON{}
	_, err = s.m.Tool(ctx, out, "postern", "reconcile", source, "--objects", "--type", "customer", "--full", "--config",
		w.file, "-o", "json")
	if err := errors.Join(err, <-profiled); err != nil {
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

// ProfileScan profiles the processor during an object scan.
func (s *Suite) ProfileScan(ctx context.Context, objects int, take TakeProfiles) (err error) {
	w, err := s.newScannedAccount(ctx, objects)
	if w != nil {
		defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return err
	}
	sample, err := w.scan(ctx, scannedSources[0], int64(objects),
		func(admin string) error { return take(ctx, Scan, admin) })
	s.log.Info(Scan, "seconds", sample.Seconds, "rate", int(sample.Rate))
	return err
}
