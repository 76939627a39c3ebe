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

// Limits of one page of a search in bodies. Bodies may be long, so the search checks the time
// after each small batch.
const (
	maxSearchedEvents = 20_000
	searchTimeout     = 2 * time.Second
	searchPageSize    = 500
	searchBatchSize   = 25
)

// searchBodies returns a page of the selected events whose bodies fit each group of matchers, the
// newest first. A body fits a group if it fits one of its matchers. A page may end before its
// limit, with SearchedTo and a cursor to continue, if the search took too long or read too many
// events.
func searchBodies(ctx context.Context, pool *pgxpool.Pool, f events.Filter, groups [][]redaction.ValueMatcher,
	cursor string, limit int, within time.Duration) (events.Page[events.Item], error) {
	var page events.Page[events.Item]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	began := time.Now()
	for examined := 0; ; {
		part, err := events.List(ctx, pool, f, cursor, searchPageSize)
		if err != nil {
			return page, err
		}
		for some := range slices.Chunk(part.Items, searchBatchSize) {
			found := some
			for _, matchers := range groups {
				if found, err = filterMatching(ctx, pool, matchers, found); err != nil {
					return page, err
				}
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
		if cursor = part.Next; examined >= maxSearchedEvents || time.Since(began) > within {
			var below int64
			if err := events.ReadCursor(cursor, &below); err != nil {
				return page, err
			}
			page.Next, page.SearchedTo.Time = cursor, events.Time(below)
			return page, nil
		}
	}
}

// filterMatching returns the events whose bodies fit a matcher, in their order.
func filterMatching(ctx context.Context, pool *pgxpool.Pool, matchers []redaction.ValueMatcher,
	some []events.Item) ([]events.Item, error) {
	if len(some) == 0 {
		return nil, nil
	}
	ids := make([]int64, len(some))
	for i := range some {
		ids[i] = some[i].ID
	}
	found, err := redaction.Mentioning(ctx, pool, matchers, ids)
	return slices.DeleteFunc(slices.Clone(some), func(e events.Item) bool { return !found[e.ID] }), err
}

// bodyMatcher returns the matcher of a value at a path, which is written PATH=VALUE.
func bodyMatcher(text string) (redaction.ValueMatcher, error) {
	path, value, ok := strings.Cut(text, "=")
	if !ok {
		return redaction.ValueMatcher{}, invalid("body: write a path and a value, like data.object.customer=cus_1")
	}
	if !strings.HasPrefix(path, "$") {
		path = "$." + path
	}
	return redaction.NewValueMatcher(path, value)
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
