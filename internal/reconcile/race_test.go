//go:build race

package reconcile_test

// Under the race detector a life costs three times as much, and is there for what goes on at once: one of each kind, and a quarter of it. What must happen in lives, and
// what comes of them, is held against those without it.
const manyLives, longLife = 1, wholeLife / 4
