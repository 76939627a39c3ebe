package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// Param is a parameter of a query. The JSON API uses this name. The command line uses it with
// hyphens in place of underscores.
type Param struct {
	Name string
	// Help describes the parameter in a few words.
	Help string
}

const timeHelp = "an RFC 3339 time, a date, or how long ago (15m, 2h, 7d)"

// The parameters that several lists have.
var (
	sourceParam  = Param{"source", "name of the source"}
	accountParam = Param{"account",
		"tenant inside the source (Stripe account, Shopify shop); an empty value selects only those without one"}
	sinceParam = Param{"since", "from this time on: " + timeHelp}
	untilParam = Param{"until", "before this time: " + timeHelp}
	limitParam = Param{"limit", fmt.Sprintf("items per page, 1 to %d (default %d)", events.MaxLimit,
		events.DefaultLimit)}
	cursorParam = Param{"cursor", "next_cursor of the previous page"}
)

// query reads parameters. err is the first error.
type query struct {
	ctx context.Context
	// pool is nil where parameters are only checked and not looked up in the database.
	pool   *pgxpool.Pool
	values url.Values
	now    time.Time
	err    error
}

// newQuery returns a query with these parameters. An unknown or repeated parameter, or a text that
// PostgreSQL cannot store, is its err.
func newQuery(ctx context.Context, pool *pgxpool.Pool, values url.Values, known []Param) *query {
	q := &query{ctx: ctx, pool: pool, values: values, now: time.Now()}
	for name, given := range values {
		if !slices.ContainsFunc(known, func(p Param) bool { return p.Name == name }) {
			q.fail("parameter %q does not exist; the parameters are %s", name, names(known))
		}
		if len(given) > 1 {
			q.fail("parameter %q is given %d times", name, len(given))
		}
		for _, text := range given {
			if err := checkStorable(name, text); err != nil && q.err == nil {
				q.err = err
			}
		}
	}
	return q
}

// checkStorable returns an error for a text that PostgreSQL can neither store nor compare. The
// error names the parameter and not the text, which may be personal data. Errors:
// events.ErrInvalid.
func checkStorable(name, text string) error {
	if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
		return fmt.Errorf("%w: %s: the text contains the character U+0000 or is not valid UTF-8", events.ErrInvalid,
			name)
	}
	return nil
}

func names(params []Param) string {
	var all []string
	for _, p := range params {
		all = append(all, p.Name)
	}
	return strings.Join(all, ", ")
}

func (q *query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("%w: "+format, append([]any{events.ErrInvalid}, args...)...)
	}
}

func (q *query) text(name string) string { return q.values.Get(name) }

// either returns a parameter that has two names.
func (q *query) either(name, other string) string {
	a, b := q.text(name), q.text(other)
	if a != "" && b != "" && a != b {
		q.fail("%s %q and %s %q: they mean the same, so give one", name, a, other, b)
	}
	return cmp.Or(a, b)
}

// optional returns nil for a parameter that is absent, to distinguish it from an empty one.
func (q *query) optional(name string) *string {
	if !q.values.Has(name) {
		return nil
	}
	text := q.text(name)
	return &text
}

// oneOf returns a parameter that has a fixed set of values.
func (q *query) oneOf(name string, known ...string) string {
	text := q.text(name)
	if text != "" && !slices.Contains(known, text) {
		q.fail("%s %q does not exist; choose one of %s", name, text, strings.Join(known, ", "))
	}
	return text
}

func (q *query) flag(name string) *bool {
	switch q.oneOf(name, "true", "false") {
	case "true":
		return new(true)
	case "false":
		return new(false)
	}
	return nil
}

func (q *query) number(name string) int64 {
	text := q.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		q.fail("%s %q is not a number", name, text)
	}
	return n
}

// run returns the run number of the parameter run, which may be "live".
func (q *query) run() int64 {
	if q.text("run") == events.LiveRunName {
		return events.LiveRun
	}
	return q.number("run")
}

// limit returns 0 where the parameter is absent. It rejects the value 0.
func (q *query) limit() int {
	n := q.number("limit")
	if q.text("limit") != "" && (n < 1 || n > events.MaxLimit) {
		q.fail("limit %q: give 1 to %d", q.text("limit"), events.MaxLimit)
	}
	return int(n)
}

// time returns the zero time where the parameter is absent.
func (q *query) time(name string) time.Time {
	text := q.text(name)
	if text == "" {
		return time.Time{}
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at
		}
	}
	ago, err := duration(text)
	if err != nil {
		q.fail("%s %q: write %s", name, text, timeHelp)
	}
	return q.now.Add(-ago)
}

// duration parses a Go duration, or a number of days (7d).
func duration(text string) (time.Duration, error) {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	return time.Duration(n) * 24 * time.Hour, err
}

// source returns the number of the named source, 0 where the parameter is absent.
func (q *query) source() int32 {
	name := q.text("source")
	if name == "" || q.err != nil || q.pool == nil {
		return 0
	}
	known, err := sources(q.ctx, q.pool)
	if err != nil {
		q.err = err
		return 0
	}
	number, ok := known.Number[name]
	if !ok {
		q.fail("source %q is not known; the known sources are %s", name, sourceNames(known))
	}
	return number
}

func sources(ctx context.Context, pool *pgxpool.Pool) (events.Sources, error) {
	return events.RegisterSources(ctx, pool, nil)
}

func sourceNames(known events.Sources) string {
	var all []string
	for name := range known.Number {
		all = append(all, name)
	}
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
