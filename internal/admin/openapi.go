package admin

import (
	"context"
	_ "embed"
	"encoding/json"

	"github.com/jackc/pgx/v5/pgxpool"
)

// openAPIDocument is the description of the API. A test writes it from the same tables as the
// handlers: go test ./internal/admin -run TestReference -update.
//
//go:embed openapi.json
var openAPIDocument []byte

// openAPI returns the description of the API.
func openAPI(context.Context, *pgxpool.Pool, none) (json.RawMessage, error) {
	return openAPIDocument, nil
}
