// Package migrations holds the schema as numbered, forward-only SQL files, embedded in every
// binary.
package migrations

import "embed"

// Files are the migrations, NNNN_subject.sql, in goose's format.
//
//go:embed [0-9]*.sql
var Files embed.FS
