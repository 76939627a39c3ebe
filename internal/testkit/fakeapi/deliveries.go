package fakeapi

import (
	"cmp"
	"slices"
	"time"
)

// Chooser makes the choices of a fake.
type Chooser interface {
	// IntN returns a number from 0 to n-1.
	IntN(n int) int
}

// RandomDelay returns a random delay of a delivery, in microseconds. Zero means at most a minute.
func RandomDelay(c Chooser, longest time.Duration) int64 {
	return int64(c.IntN(int(cmp.Or(longest, time.Minute).Microseconds()) + 1))
}

// Queue holds planned deliveries with the times at which they are due, in microseconds. It is not
// safe for concurrent use.
type Queue[A any] []planned[A]

type planned[A any] struct {
	delivery A
	due      int64
}

// Add plans a delivery.
func (q *Queue[A]) Add(delivery A, due int64) { *q = append(*q, planned[A]{delivery, due}) }

// TakeDue removes the deliveries that are due at a time, and returns them as a network delivers
// them: in the order of those times, but a percentage of them swap places with another one.
func (q *Queue[A]) TakeDue(now int64, shuffled int, c Chooser) []A {
	slices.SortStableFunc(*q, func(a, b planned[A]) int { return cmp.Compare(a.due, b.due) })
	var due []A
	for _, p := range *q {
		if p.due <= now {
			due = append(due, p.delivery)
		}
	}
	*q = (*q)[len(due):]
	for i := range due {
		if shuffled > 0 && c.IntN(100) < shuffled {
			j := c.IntN(len(due))
			due[i], due[j] = due[j], due[i]
		}
	}
	return due
}
