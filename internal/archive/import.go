package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// The bounds of one append statement, whichever is reached first. batchJoinedBytes applies to lines
// whose body another line already has. They are kept only because they may have to be set aside as
// bad. The more of them are in one batch, the fewer copies of the body are stored.
const (
	batchEvents      = 500
	batchBytes       = 4 << 20
	batchJoinedBytes = 64 << 20
)

// maxClockAhead is how much later than now a time of receipt in a file may be. A version may be as
// far ahead as its time of receipt.
const maxClockAhead = time.Hour

// ImportParams are the parameters of an import.
type ImportParams struct {
	// Pool is connected as a role that may append (postern_gateway). For a dry run a role that may
	// read the keys is enough (postern_operator).
	Pool *pgxpool.Pool
	// Sources are the configured sources, by name.
	Sources map[string]Source
	// Target is the source of all events. If it is "", each event names its own source, which only
	// lines of an export do.
	Target string
	// Name replaces the name of the file in the keys of events without a key; "": the file's own
	// name.
	Name string
	// Format is the format of the files; "": it is detected.
	Format Format
	// Header are headers that apply to every delivery; not for lines of an export.
	Header http.Header
	// ReceivedAt is the time of receipt of all events; zero: the time of the event, else that of
	// the file. Not for lines of an export.
	ReceivedAt time.Time
	// Now is the time of the import.
	Now time.Time
	// DryRun: nothing is written. With more than a million new events the counts are upper bounds.
	DryRun bool
	// maxRemembered is how many new events a dry run remembers; 0: the default of
	// events.AppendDryRun. Tests set it.
	maxRemembered int
	// Stdin is read for the path -.
	Stdin io.Reader
	// BadPath is the file for bad entries; "": the file's own name with .bad, and none for standard
	// input.
	BadPath string
	// Report is called for each bad entry, in order.
	Report func(where string, why error)
	// Progress may be nil.
	Progress Progress
}

// ImportResult is the result of an import.
type ImportResult struct {
	// Read is the number of lines that are not blank.
	Read int64 `json:"read"`
	// Added events were appended, or would be in a dry run.
	Added int64 `json:"new"`
	// AtMost: a dry run had too many new events to remember all their keys. Some of the later ones
	// may be duplicates or conflicts of others.
	AtMost bool `json:"at_most,omitempty"`
	// Duplicate events were in the log.
	Duplicate int64 `json:"duplicate"`
	// Conflict events have the key of another stored event; they were stored as conflicts.
	Conflict int64 `json:"conflict"`
	// Bad entries are not events; they were set aside.
	Bad int64 `json:"unreadable"`
}

func (i *ImportResult) add(o ImportResult) {
	i.Read += o.Read
	i.Added += o.Added
	i.Duplicate += o.Duplicate
	i.Conflict += o.Conflict
	i.Bad += o.Bad
}

// Import appends the events of files, one after the other. An event that was imported before is a
// duplicate, so an interrupted import is simply repeated. An entry that is not an event is
// reported, copied to the file of bad entries, and counted. An error concerns a file, the database
// or the parameters. The result then counts what was done before.
func Import(ctx context.Context, im ImportParams, paths ...string) (all ImportResult, err error) {
	sources, err := events.RegisterSources(ctx, im.Pool, nil)
	if err != nil {
		return all, err
	}
	appendDryRun := &events.AppendDryRun{Limit: im.maxRemembered}
	placeholders := map[string]int32{}
	for _, path := range paths {
		r := &importer{ImportParams: &im, sources: sources, appendDryRun: appendDryRun, placeholders: placeholders,
			earlierEntries: all.Read,
			groups:         map[groupKey]int{}}
		err := r.importFile(ctx, path)
		all.add(r.counts)
		if all.AtMost = appendDryRun.LimitExceeded; err != nil {
			return all, err
		}
	}
	return all, nil
}

// importer imports one file.
type importer struct {
	*ImportParams
	sources events.Sources
	// appendDryRun remembers the new events of a dry run. placeholders are numbers for sources that
	// have none yet.
	appendDryRun *events.AppendDryRun
	placeholders map[string]int32
	input        *input
	builder      *deliveryBuilder
	badEntries   *badFile
	counts       ImportResult
	// earlierEntries is how many entries the previous files had.
	earlierEntries int64
	batch          []pending
	// groups are the positions in the batch of deliveries with a known id.
	groups                                 map[groupKey]int
	eventCount, byteCount, joinedByteCount int
}

// pending is a delivery to append, with the entries that it was made of.
type pending struct {
	delivery events.Delivery
	entries  []entry
}

// groupKey identifies a delivery of the exported log.
type groupKey struct {
	source int32
	id     int64
}

func (r *importer) importFile(ctx context.Context, path string) (err error) {
	if r.input, err = r.open(path); err != nil {
		return err
	}
	defer r.input.close()
	if err := r.checkParams(); err != nil {
		return err
	}
	r.badEntries = &badFile{path: r.badPath(), dryRun: r.DryRun}
	if isSameFile(r.badEntries.path, path) {
		return fmt.Errorf("%s is the file to import: name another file for bad entries", path)
	}
	defer func() { err = errors.Join(err, r.badEntries.close()) }()
	for {
		e, err := r.input.next()
		if errors.Is(err, io.EOF) {
			return r.flushBatch(ctx)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", r.input.path, err), r.flushBatch(ctx))
		}
		r.counts.Read++
		if err := r.importEntry(ctx, e); err != nil {
			return err
		}
	}
}

// isSameFile reports whether two paths are the same file.
func isSameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// checkParams checks that the parameters fit the file's format.
func (r *importer) checkParams() error {
	if r.input.format == Postern {
		if len(r.Header) > 0 || !r.ReceivedAt.IsZero() {
			return fmt.Errorf("%s is an export, which contains headers and times of receipt itself: leave out "+
				"--header and --received-at", r.input.path)
		}
		return nil
	}
	if r.Target == "" {
		return fmt.Errorf("%s does not name the source of its events: name it with --source", r.input.path)
	}
	src, ok := r.Sources[r.Target]
	if !ok {
		return r.unknownSourceError(r.Target)
	}
	r.builder = &deliveryBuilder{source: &src, request: provider.Delivery{Header: r.Header}, receivedAt: r.ReceivedAt,
		defaultTime: earlier(r.input.modified, r.Now), now: r.Now, format: r.input.format,
		digest: &fileDigest{name: uncompressedName(cmp.Or(r.Name, r.input.name)), hash: sha256.New()}}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// unknownSourceError is the error of a source into which nothing can be imported.
func (r *importer) unknownSourceError(name string) error {
	return fmt.Errorf("source %q is not configured here: add it to the configuration and pass that with --config "+
		"FILE, or import everything into an existing source with --source NAME", name)
}

// importEntry adds an entry to the batch, or sets it aside as bad.
func (r *importer) importEntry(ctx context.Context, e entry) error {
	if r.builder != nil {
		r.builder.digest.add(e.raw)
		if e.err == nil {
			r.builder.fill(&e, r.input.name)
		}
	}
	if at := e.delivery.ReceivedAt; e.err == nil && at.After(r.Now.Add(maxClockAhead)) {
		e.err = fmt.Errorf("it was received at %s, which is in the future", at.Format(time.RFC3339))
	}
	if e.err == nil {
		number, err := r.sourceNumber(ctx, &e)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", r.location(&e), err), r.flushBatch(ctx))
		}
		e.delivery.Source = number
	}
	if e.err != nil {
		return r.setAside(&e, e.err)
	}
	return r.addToBatch(ctx, e)
}

// addToBatch adds an event to the batch. Events of one delivery are near each other in an export,
// but not always adjacent.
func (r *importer) addToBatch(ctx context.Context, e entry) error {
	r.eventCount += len(e.delivery.Events)
	delivery := groupKey{e.delivery.Source, e.deliveryID}
	if i, ok := r.groups[delivery]; ok && e.deliveryID != 0 && joinEntry(&r.batch[i].delivery, &e) {
		e.delivery = events.Delivery{} // the batch has its body
		r.batch[i].entries = append(r.batch[i].entries, e)
		r.joinedByteCount += len(e.raw)
	} else {
		r.groups[delivery] = len(r.batch)
		r.batch = append(r.batch, pending{delivery: e.delivery, entries: []entry{e}})
		r.byteCount += len(e.delivery.Body) + len(e.raw)
	}
	if r.eventCount < batchEvents && r.byteCount < batchBytes && r.joinedByteCount < batchJoinedBytes {
		return nil
	}
	return r.flushBatch(ctx)
}

// sourceNumber returns the number of an entry's source. It registers a configured source without a
// number.
func (r *importer) sourceNumber(ctx context.Context, e *entry) (int32, error) {
	name := e.source
	if r.Target != "" {
		name = r.Target
	}
	configured, isConfigured := r.Sources[name]
	providerName := r.sources.Provider[name]
	if isConfigured {
		providerName = configured.Provider.Name()
	}
	switch {
	case providerName == "":
		return 0, r.unknownSourceError(name)
	case e.provider != "" && e.provider != providerName:
		e.err = fmt.Errorf("it is from provider %s, but source %s has provider %s", e.provider, name, providerName)
		return 0, nil
	}
	number, ok := r.sources.Number[name]
	switch {
	case ok && r.sources.Provider[name] == providerName:
		return number, nil
	case r.DryRun && !ok:
		return r.placeholderNumber(name), nil
	}
	registered, err := events.RegisterSources(ctx, r.Pool, map[string]string{name: providerName})
	if err != nil {
		return 0, err
	}
	r.sources = registered
	return registered.Number[name], nil
}

// placeholderNumber returns a number that no source has, for a source that a dry run does not
// register. The source has no events yet, but its new events may be duplicates of each other.
func (r *importer) placeholderNumber(name string) int32 {
	if _, ok := r.placeholders[name]; !ok {
		r.placeholders[name] = int32(-1 - len(r.placeholders))
	}
	return r.placeholders[name]
}

// location describes where an entry is.
func (r *importer) location(e *entry) string {
	return fmt.Sprintf("%s:%d", r.input.path, e.line)
}

func (r *importer) setAside(e *entry, why error) error {
	r.counts.Bad++
	if r.Report != nil {
		r.Report(r.location(e), why)
	}
	return r.badEntries.add(e.raw)
}

func (r *importer) badPath() string {
	switch {
	case r.BadPath != "":
		return r.BadPath
	case r.input.stdin:
		return ""
	}
	return r.input.path + ".bad"
}
