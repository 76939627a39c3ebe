package operations

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
)

// Limits of one page of a search for mentions. Bodies may be long, so the search checks the time
// after each small batch.
const (
	maxMentionEvents = 20_000
	mentionTimeout   = 2 * time.Second
	mentionPageSize  = 500
	mentionBatchSize = 25
)

// searchMentions returns a page of the selected events that mention a value, newest first. A page
// may end before its limit, with SearchedTo and a cursor to continue, if the search took too long
// or read too many events.
func searchMentions(ctx context.Context, pool *pgxpool.Pool, f events.Filter, matchers []redaction.ValueMatcher,
	cursor string, limit int, within time.Duration) (events.Page[events.Item], error) {
	var page events.Page[events.Item]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	began := time.Now()
	for examined := 0; ; {
		part, err := events.List(ctx, pool, f, cursor, mentionPageSize)
		if err != nil {
			return page, err
		}
		for some := range slices.Chunk(part.Items, mentionBatchSize) {
			found, err := filterMentioning(ctx, pool, matchers, some)
			if err != nil {
				return page, err
			}
			last := some[len(some)-1]
			if remaining := limit - len(page.Items); len(found) >= remaining {
				found = found[:remaining]
				last = found[remaining-1]
			}
			if page.Items = append(page.Items, found...); len(page.Items) == limit || time.Since(began) > within {
				page.Next, page.SearchedTo = events.MakeCursor(last.ID), last.StoredAt
				return page, nil
			}
		}
		if examined += len(part.Items); part.Next == "" {
			return page, nil
		}
		if cursor = part.Next; examined >= maxMentionEvents || time.Since(began) > within {
			var below int64
			if err := events.ReadCursor(cursor, &below); err != nil {
				return page, err
			}
			page.Next, page.SearchedTo.Time = cursor, events.Time(below)
			return page, nil
		}
	}
}

// filterMentioning returns the events that mention a value, in their order.
func filterMentioning(ctx context.Context, pool *pgxpool.Pool, matchers []redaction.ValueMatcher,
	some []events.Item) ([]events.Item, error) {
	ids := make([]int64, len(some))
	for i := range some {
		ids[i] = some[i].ID
	}
	found, err := redaction.Mentioning(ctx, pool, matchers, ids)
	return slices.DeleteFunc(slices.Clone(some), func(e events.Item) bool { return !found[e.ID] }), err
}

// mentionMatchers returns a matcher for each value in a list.
func mentionMatchers(list string) (matchers []redaction.ValueMatcher, err error) {
	values := split(list)
	if len(values) == 0 || len(values) > redaction.MaxMentions {
		return nil, invalid("mentions: give 1 to %d values", redaction.MaxMentions)
	}
	for _, value := range values {
		f, err := redaction.NewMentionMatcher(value)
		if err != nil {
			return nil, err
		}
		matchers = append(matchers, f)
	}
	return matchers, nil
}

// split splits a list at commas and line breaks.
func split(list string) (parts []string) {
	for part := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == '\n' }) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}
