package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// The targets of objectScan. All objects are equal in the list and in the mirror.
const (
	// fetchTarget only gets and parses the pages, one after the other.
	fetchTarget = "fetch"
	// scanTarget compares the objects with the mirror.
	scanTarget = "object-scan"
	// scanFewTarget compares a tenth of them, to show whether memory grows with the number of
	// objects.
	scanFewTarget = "object-scan-a-tenth"
)

// objectScan measures how fast an object scan compares unchanged objects with the mirror. It
// compares that with a loop that only gets and parses the same pages.
func (s *Suite) objectScan(ctx context.Context, row string, rounds, objects int) (_ []Sample, err error) {
	w, err := s.newScannedAccount(ctx, objects)
	defer w.close(ctx, &err)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	return s.inTurn(row, rounds, []string{fetchTarget, scanTarget, scanFewTarget},
		func(target string) (Sample, error) { return w.measure(ctx, target) })
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

// close is deferred as drop is.
func (w *scannedAccount) close(ctx context.Context, err *error) {
	if w != nil {
		*err = errors.Join(*err, w.list.close())
		w.s.drop(ctx, w.database, err)
	}
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
	return w.s.writeConfig(text)
}

// measure reads the list once as a target does. It counts the pages and all other calls.
func (w *scannedAccount) measure(ctx context.Context, target string) (sample Sample, err error) {
	pages, others := w.list.pages.Load(), w.list.others.Load()
	switch target {
	case fetchTarget:
		sample, err = fetch(ctx, w.list.address(false))
		if err == nil && sample.Events != int64(w.list.objects) {
			err = fmt.Errorf("the list has %d objects, want %d", sample.Events, w.list.objects)
		}
	case scanTarget:
		sample, err = w.scan(ctx, scannedSources[0], int64(w.list.objects), nil)
	case scanFewTarget:
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
		body, err := load.Get(ctx, address+"/v1/customers?limit="+fmt.Sprint(listPage)+cursor, time.Minute)
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
	return rated(sample.Events, time.Since(began).Seconds()), nil
}

// scan makes a new processor compare all objects of a source. All must be equal. take, if not nil,
// takes profiles meanwhile.
func (w *scannedAccount) scan(ctx context.Context, source string, want int64,
	take func(admin string) error) (sample Sample, err error) {
	r := &running{database: w.database, file: w.file}
	if r.process, err = w.s.m.Serve(ctx, "processor", w.s.trace(r), "--config", w.file); err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	profiled := make(chan error, 1)
	go func() {
		if take == nil {
			profiled <- nil
			return
		}
		profiled <- take(r.process.Admin)
	}()
	sample, err = w.s.measureRun(ctx, r, want, "equal", "reconcile", source, "--objects", "--type", "customer",
		"--full")
	return sample, errors.Join(err, <-profiled)
}
