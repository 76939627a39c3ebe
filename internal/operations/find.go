package operations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	maxFound      = 50
	maxFindLength = 1000
	findTimeout   = 5 * time.Second
)

// FindParams name the id to find.
type FindParams struct {
	Q string `json:"q"`
}

// Found is something with the given id.
type Found struct {
	// Kind is event, object, run, rejection, effect, schedule or source.
	Kind    string `json:"kind"`
	Source  string `json:"source"`
	Account string `json:"account"`
	// Type is the type of an object; empty for other kinds.
	Type string `json:"type"`
	// ID is the id with which the API shows it: Postern's id, the provider's id of an object, or
	// the name of a schedule or source.
	ID    string `json:"id"`
	Title string `json:"title"`
	// At is when it was stored or last changed; null for a source.
	At events.Instant `json:"at"`
}

// FindResult is everything that has an id, the newest first.
type FindResult struct {
	Items []Found `json:"items"`
	// Truncated is true if there may be more than Items.
	Truncated bool `json:"truncated"`
}

// Find returns everything that has exactly the given text as its id: events by Postern's id or the
// provider's key, objects, runs, rejections, effects by number or key, schedules and sources. A
// number may follow the name of a kind: "run 3". Errors: events.ErrInvalid.
func Find(ctx context.Context, pool *pgxpool.Pool, p FindParams) (*FindResult, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	q := strings.TrimSpace(p.Q)
	switch {
	case q == "":
		return nil, invalid("q: give an id or a name to find")
	case utf8.RuneCountInString(q) > maxFindLength:
		return nil, invalid("q: give one id or name of at most %d characters", maxFindLength)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, findTimeout, fmt.Errorf("the search took longer than %s", findTimeout))
	defer cancel()
	f := finder{ctx: ctx, pool: pool, text: q, found: []Found{}}
	f.number, _ = events.ParseID(q)
	if kind, rest, ok := strings.Cut(q, " "); ok {
		f.kind = strings.ToLower(kind)
		f.number, _ = events.ParseID(strings.TrimPrefix(strings.TrimSpace(rest), "#"))
	}
	for _, find := range []func() error{f.sources, f.schedule, f.run, f.rejection, f.effects, f.events, f.objects} {
		if err := find(); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(f.found, func(a, b Found) int { // a later event of a millisecond has a greater id
		return cmp.Or(b.At.Compare(a.At.Time), cmp.Compare(len(b.ID), len(a.ID)), cmp.Compare(b.ID, a.ID))
	})
	if len(f.found) > maxFound {
		f.found, f.truncated = f.found[:maxFound], true
	}
	return &FindResult{Items: f.found, Truncated: f.truncated}, nil
}

// finder collects what has an id.
type finder struct {
	ctx  context.Context
	pool *pgxpool.Pool
	text string
	// number is the number that text contains, 0 if none. kind is the word before it.
	number    int64
	kind      string
	found     []Found
	truncated bool
}

// numbered returns the number to look for among things of a kind; 0 if there is none.
func (f *finder) numbered(kind string) int64 {
	if f.kind != "" && f.kind != kind {
		return 0
	}
	return f.number
}

// add adds what a function that shows one thing has returned.
func (f *finder) add(err error, found func() Found) error {
	if errors.Is(err, events.ErrNotFound) {
		return nil
	}
	if err == nil {
		f.found = append(f.found, found())
	}
	return err
}

func (f *finder) sources() error {
	known, err := sources(f.ctx, f.pool)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(known.Number)) {
		if name == f.text {
			f.found = append(f.found, Found{Kind: "source", Source: name, ID: name,
				Title: "source of provider " + known.Provider[name]})
		}
	}
	return nil
}

func (f *finder) schedule() error {
	s, err := runs.ShowSchedule(f.ctx, f.pool, f.text)
	return f.add(err, func() Found {
		return Found{Kind: "schedule", ID: s.Name, Title: "schedule of job " + s.Job, At: s.DecidedAt}
	})
}

func (f *finder) run() error {
	n := f.numbered("run")
	if n == 0 {
		return nil
	}
	r, err := runs.Show(f.ctx, f.pool, n)
	return f.add(err, func() Found {
		return Found{Kind: "run", ID: strconv.FormatInt(n, 10), Title: fmt.Sprintf("%s, %s", r.Job, r.Status),
			At: r.CreatedAt}
	})
}

func (f *finder) rejection() error {
	n := f.numbered("rejection")
	if n == 0 {
		return nil
	}
	r, err := ingest.ShowRejection(f.ctx, f.pool, n)
	return f.add(err, func() Found {
		return Found{Kind: "rejection", Source: r.Source, ID: strconv.FormatInt(n, 10),
			Title: "rejected delivery: " + r.Reason, At: r.ReceivedAt}
	})
}

func (f *finder) effects() error {
	page, err := effects.List(f.ctx, f.pool, effects.Filter{Key: f.text}, "", maxFound)
	if err != nil {
		return err
	}
	f.truncated = f.truncated || page.Next != ""
	if n := f.numbered("effect"); n != 0 && !slices.ContainsFunc(page.Items, func(e effects.Effect) bool {
		return e.ID == n
	}) {
		shown, err := effects.Show(f.ctx, f.pool, n)
		switch {
		case err == nil:
			page.Items = append(page.Items, shown[0].Effect)
		case !errors.Is(err, events.ErrNotFound):
			return err
		}
	}
	for _, e := range page.Items {
		f.found = append(f.found, Found{Kind: "effect", Source: e.Source, Account: e.Account,
			ID: strconv.FormatInt(e.ID, 10), Title: fmt.Sprintf("effect %s of rule %s, %s", e.Key, e.Rule, e.State),
			At: e.PlannedAt})
	}
	return nil
}

func (f *finder) events() error {
	found, err := events.FindAll(f.ctx, f.pool, f.text)
	if err == nil && f.kind == "event" && f.number != 0 {
		var more []events.Item
		more, err = events.FindAll(f.ctx, f.pool, strconv.FormatInt(f.number, 10))
		found = append(found, more...)
	}
	if err != nil {
		return err
	}
	for _, e := range found {
		f.found = append(f.found, Found{Kind: "event", Source: e.Source, Account: e.Account,
			ID: strconv.FormatInt(e.ID, 10), Title: describeFound(e), At: e.StoredAt})
	}
	return nil
}

// describeFound says which event it is; one that retention dropped has no type.
func describeFound(e events.Item) string {
	if e.EventType == "" {
		return strings.TrimSpace("dropped event " + e.EventID)
	}
	title := e.EventType + " " + e.EventID
	if e.ObjectID != "" {
		title += fmt.Sprintf(" about %s %s", e.ObjectType, e.ObjectID)
	}
	return title + ", " + cmp.Or(e.Status, "pending")
}

func (f *finder) objects() error {
	found, more, err := versioning.FindID(f.ctx, f.pool, f.text, maxFound)
	if err != nil {
		return err
	}
	f.truncated = f.truncated || more
	for _, o := range found {
		title := o.ObjectType + " " + o.ObjectID
		if o.Deleted {
			title += ", deleted"
		}
		f.found = append(f.found, Found{Kind: "object", Source: o.Source, Account: o.Account, Type: o.ObjectType,
			ID: o.ObjectID, Title: title, At: o.UpdatedAt})
	}
	return nil
}
