package verify

import "context"

// ordered are rows in the order of ids, read a page at a time.
type ordered[T any] struct {
	// next reads the page behind an id; an empty one is the end.
	next func(ctx context.Context, after int64) ([]T, error)
	// id is a row's.
	id func(*T) int64

	page []T
	last int64
	done bool
}

// peek is the next row, nil at the end.
func (o *ordered[T]) peek(ctx context.Context) (*T, error) {
	if len(o.page) == 0 && !o.done {
		page, err := o.next(ctx, o.last)
		if err != nil {
			return nil, err
		}
		if o.page, o.done = page, len(page) == 0; !o.done {
			o.last = o.id(&page[len(page)-1])
		}
	}
	if o.done {
		return nil, nil
	}
	return &o.page[0], nil
}

// at takes the next row if it has an id, else it returns nil.
func (o *ordered[T]) at(ctx context.Context, id int64) (*T, error) {
	row, err := o.peek(ctx)
	if err != nil || row == nil || o.id(row) != id {
		return nil, err
	}
	o.page = o.page[1:]
	return row, nil
}
