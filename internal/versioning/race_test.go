//go:build race

package versioning_test

const longestWalk = 3
