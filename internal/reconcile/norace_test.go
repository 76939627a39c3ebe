//go:build !race

package reconcile_test

const manyLives, longLife = 2, wholeLife
