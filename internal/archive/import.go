package archive

import (
	"cmp"
	"context"
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

// The bounds of what is appended by one statement, whichever is reached first. joinedBytes is for lines whose body another line has brought: they are held
// only for the case that they must be set aside, and the more of them are together, the fewer copies of the body are stored.
const (
	batchEvents = 500
	batchBytes  = 4 << 20
	joinedBytes = 64 << 20
)

// maxAhead is how much later than now a file may say that an event was received. A later one would let its version lie as far ahead.
const maxAhead = time.Hour

// Importing is what an import needs.
type Importing struct {
	// Pool is connected as a role that may append (postern_gateway); for a dry run one that may read the keys is enough (postern_operator).
	Pool *pgxpool.Pool
	// Sources are those of the configuration, by name.
	Sources map[string]Source
	// Into is the name of the source that everything is sent to; empty: each event says its own, which only lines of an export do.
	Into string
	// Name stands for the name of the file in the keys of what nothing else names; empty: the file's own. CSV from standard input needs one for such rows.
	Name string
	// Format is that of the files; empty: it is found out.
	Format Format
	// Header has the headers that every delivery came with; not for lines of an export.
	Header http.Header
	// Map has the columns of a CSV file by field: event_id, event_type, account, object_type, object_id, occurred_at, received_at, body, header.NAME.
	Map map[string]string
	// ReceivedAt is when everything was received; zero: as the file says, else the time of the event. Not for lines of an export.
	ReceivedAt time.Time
	// Now is the time of the import.
	Now time.Time
	// DryRun: nothing is written. Of more than a million new events it says at most how many there are.
	DryRun bool
	// foresee is how many new events a dry run remembers, 0: as many as events.Foresight does. For tests.
	foresee int
	// Stdin is what the path - stands for.
	Stdin io.Reader
	// BadPath is where entries that are no events are copied to; empty: the file's own with .bad behind, and nowhere for standard input.
	BadPath string
	// Report is told of each entry that is none, in its order.
	Report func(where string, why error)
	// Progress may be nil.
	Progress Progress
}

// Imported is what came of an import.
type Imported struct {
	// Read is how many entries the files have: lines, rows, elements of a list, files of a folder.
	Read int64 `json:"read"`
	// New events were appended, or would be.
	New int64 `json:"new"`
	// AtMost: so many would be new that a dry run no longer knows the keys of all of them; some of the later ones may be duplicates or conflicts of others.
	AtMost bool `json:"at_most,omitempty"`
	// Duplicate events were there.
	Duplicate int64 `json:"duplicate"`
	// Conflict: another event is there under the same key; the one of the file was kept beside it.
	Conflict int64 `json:"conflict"`
	// MadeConflict is how many of those have a key that was made from file and row.
	MadeConflict int64 `json:"made_conflict,omitempty"`
	// Bad entries are no events; they were set aside.
	Bad int64 `json:"bad"`
	// More: the last page of an API that was read says that there are more.
	More bool `json:"more,omitempty"`
}

func (i *Imported) add(o Imported) {
	i.Read += o.Read
	i.New += o.New
	i.Duplicate += o.Duplicate
	i.Conflict += o.Conflict
	i.MadeConflict += o.MadeConflict
	i.Bad += o.Bad
}

// Import appends the events of files, one after the other. What was imported before is a duplicate, so that an import that was ended is simply run
// again. An entry that is no event is reported, copied to the file of bad entries, and counted. An error is of a file, of the database or of what was
// asked; what was counted until then is done.
func Import(ctx context.Context, im Importing, paths ...string) (all Imported, err error) {
	known, err := events.RegisterSources(ctx, im.Pool, nil)
	if err != nil {
		return all, err
	}
	foresight := &events.Foresight{Limit: im.foresee}
	unknown := map[string]int32{}
	for _, path := range paths {
		r := &importer{Importing: &im, known: known, foresight: foresight, numbers: unknown, done: all.Read, groups: map[groupKey]int{}}
		err := r.file(ctx, path)
		all.add(r.counts)
		all.More = r.more(all.More)
		if all.AtMost = foresight.AtMost; err != nil {
			return all, err
		}
	}
	return all, nil
}

// importer imports one file.
type importer struct {
	*Importing
	known events.Sources
	// foresight remembers what a dry run found new, numbers stand there for those of sources that have none yet.
	foresight *events.Foresight
	numbers   map[string]int32
	in        *input
	plain     *plain
	bad       *badFile
	counts    Imported
	// done is how many entries earlier files had.
	done  int64
	batch []pending
	// groups are the places in the batch of the deliveries that are known by their ids.
	groups          map[groupKey]int
	n, size, joined int
}

// pending is a delivery that is to be appended, with the entries that it was made of.
type pending struct {
	delivery events.Delivery
	entries  []entry
}

// groupKey is a delivery of the log that an export was made of.
type groupKey struct {
	source int32
	id     int64
}

func (r *importer) file(ctx context.Context, path string) (err error) {
	if r.in, err = r.open(path); err != nil {
		return err
	}
	defer r.in.close()
	if err := r.prepare(); err != nil {
		return err
	}
	r.bad = &badFile{path: r.badPath(), head: r.in.head, dry: r.DryRun}
	if same(r.bad.path, path) {
		return fmt.Errorf("%s is read: name another file for bad entries", path)
	}
	defer func() { err = errors.Join(err, r.bad.close()) }()
	for {
		e, m, err := r.in.next()
		if errors.Is(err, io.EOF) {
			return r.flush(ctx)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", r.in.path, err), r.flush(ctx))
		}
		r.counts.Read++
		if err := r.take(ctx, e, m); err != nil {
			return err
		}
	}
}

// more says whether there are more pages than were read, as the last of them says; before: as one of an earlier file did.
func (r *importer) more(before bool) bool {
	if r.in == nil || r.in.pages == nil || !r.in.pages.paged {
		return before
	}
	return r.in.pages.more
}

// same tells whether two paths are one file.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// prepare wants that what was asked fits the file's format.
func (r *importer) prepare() error {
	if r.in.format == Postern {
		if len(r.Header) > 0 || !r.ReceivedAt.IsZero() {
			return fmt.Errorf("%s is an export, which says headers and times of receipt itself: leave out --header and --received-at", r.in.path)
		}
		return nil
	}
	if r.Into == "" {
		return fmt.Errorf("%s says of no event which source it is of: name it with --source", r.in.path)
	}
	src, ok := r.Sources[r.Into]
	if !ok {
		return r.unknown(r.Into)
	}
	r.plain = &plain{source: &src, request: provider.Delivery{Header: r.Header}, receivedAt: r.ReceivedAt, base: earlier(r.in.modified, r.Now), now: r.Now, format: r.in.format,
		marks: newMarks(markName(cmp.Or(r.Name, r.in.name)), r.in.head)}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// unknown is the error of a source that nothing can be imported into.
func (r *importer) unknown(name string) error {
	return fmt.Errorf("source %q is not configured here: add it to the configuration and name that with --config FILE, or send everything to a source that is there with --source NAME", name)
}

// take puts an entry into the batch, or aside.
func (r *importer) take(ctx context.Context, e entry, m *mapped) error {
	name := r.in.name
	if e.file != "" {
		name = e.file
	}
	if r.plain != nil {
		r.plain.marks.add(e.raw)
	}
	if e.err == nil && r.plain != nil {
		p := *r.plain
		if !e.receivedAt.IsZero() {
			p.base = earlier(e.receivedAt, r.Now)
		}
		p.complete(&e, name, m)
	}
	if e.made && r.in.stdin && r.Name == "" {
		return fmt.Errorf("%s: no column names this event, and standard input has no name to make one of: map event_id to a column that does, or give the input a name with --name", r.where(&e))
	}
	if e.err == nil && e.delivery.ReceivedAt.After(r.Now.Add(maxAhead)) {
		e.err = yetToCome(e.delivery.ReceivedAt)
	}
	if e.err == nil {
		number, err := r.source(ctx, &e)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", r.where(&e), err), r.flush(ctx))
		}
		e.delivery.Source = number
	}
	if e.err != nil {
		return r.setAside(&e, e.err)
	}
	return r.gather(ctx, e)
}

// gather adds an event to the batch. Those of one delivery lie near each other in an export, but not side by side.
func (r *importer) gather(ctx context.Context, e entry) error {
	r.n += len(e.delivery.Events)
	delivery := groupKey{e.delivery.Source, e.group}
	if i, ok := r.groups[delivery]; ok && e.group != 0 && join(&r.batch[i].delivery, &e) {
		e.delivery = events.Delivery{} // its body is there
		r.batch[i].entries = append(r.batch[i].entries, e)
		r.joined += len(e.raw)
	} else {
		r.groups[delivery] = len(r.batch)
		r.batch = append(r.batch, pending{delivery: e.delivery, entries: []entry{e}})
		r.size += len(e.delivery.Body) + len(e.raw)
	}
	if r.n < batchEvents && r.size < batchBytes && r.joined < joinedBytes {
		return nil
	}
	return r.flush(ctx)
}

// source is the number of the source that an entry goes to; a configured one that has none yet gets it.
func (r *importer) source(ctx context.Context, e *entry) (int32, error) {
	name := e.source
	if r.Into != "" {
		name = r.Into
	}
	configured, isConfigured := r.Sources[name]
	is := r.known.Provider[name]
	if isConfigured {
		is = configured.Provider.Name()
	}
	switch {
	case is == "":
		return 0, r.unknown(name)
	case e.provider != "" && e.provider != is:
		e.err = fmt.Errorf("it was sent by provider %s, and source %s is of provider %s", e.provider, name, is)
		return 0, nil
	}
	number, ok := r.known.Number[name]
	switch {
	case ok && r.known.Provider[name] == is:
		return number, nil
	case r.DryRun && !ok:
		return r.stand(name), nil
	}
	known, err := events.RegisterSources(ctx, r.Pool, map[string]string{name: is})
	if err != nil {
		return 0, err
	}
	r.known = known
	return known.Number[name], nil
}

// stand is a number that no source has, for one that a dry run does not give its number: nothing can be there yet, but its events may be each other's twins.
func (r *importer) stand(name string) int32 {
	if _, ok := r.numbers[name]; !ok {
		r.numbers[name] = int32(-1 - len(r.numbers))
	}
	return r.numbers[name]
}

// where is an entry's place in words.
func (r *importer) where(e *entry) string {
	if e.file != "" {
		return e.file
	}
	return fmt.Sprintf("%s:%d", r.in.path, e.line)
}

func (r *importer) setAside(e *entry, why error) error {
	r.counts.Bad++
	if r.Report != nil {
		r.Report(r.where(e), why)
	}
	return r.bad.add(e.raw)
}

func (r *importer) badPath() string {
	switch {
	case r.BadPath != "":
		return r.BadPath
	case r.in.stdin, r.in.format == Bodies:
		return ""
	}
	return r.in.path + ".bad"
}
