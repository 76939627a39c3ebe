// Package canonical reads JSON as a tree of exact values: the last of duplicate keys wins, numbers are exact decimals,
// lone surrogates are kept apart, and equal values have one canonical text and one hash.
//
// A document is read once, in time and memory linear in its length, into one slab of nodes that point into the source
// bytes; strings and numbers are decoded when asked for. The source must not change while a Value of it is in use.
package canonical
