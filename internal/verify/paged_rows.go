package verify

import "context"

// pagedRows are rows in the order of ids, read page by page.
type pagedRows[T any] struct {
	// next reads the page after an id; an empty page is the end.
	next func(ctx context.Context, after int64) ([]T, error)
	// id returns the id of a row.
	id func(*T) int64

	page      []T
	last      int64
	exhausted bool
}

// peek returns the next row, or nil at the end.
func (o *pagedRows[T]) peek(ctx context.Context) (*T, error) {
	if len(o.page) == 0 && !o.exhausted {
		page, err := o.next(ctx, o.last)
		if err != nil {
			return nil, err
		}
		if o.page, o.exhausted = page, len(page) == 0; !o.exhausted {
			o.last = o.id(&page[len(page)-1])
		}
	}
	if o.exhausted {
		return nil, nil
	}
	return &o.page[0], nil
}

// take returns the next row and moves on if the row has the given id; otherwise it returns nil.
func (o *pagedRows[T]) take(ctx context.Context, id int64) (*T, error) {
	row, err := o.peek(ctx)
	if err != nil || row == nil || o.id(row) != id {
		return nil, err
	}
	o.page = o.page[1:]
	return row, nil
}
