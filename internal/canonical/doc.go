// Package canonical parses JSON into exact values: the last of duplicate keys wins, numbers are
// exact decimals, and lone surrogates stay distinct. Equal values have one canonical text and one
// hash, which the version rule and the log use to compare states and bodies. Exceptions are numbers
// with an exponent of more than 18 digits: they are equal only if they are written alike.
// The package never reads or stores data itself.
//
// A document is read once, in time and memory linear in its length, into one slice of nodes that
// point into the source bytes. Strings and numbers are decoded on request. The source must not
// change while a Value of it is in use.
package canonical
