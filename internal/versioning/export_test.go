package versioning

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
)

// TableStatements returns the statements that load and save objects of each table, by a name.
func TableStatements() map[string]string {
	all := map[string]string{}
	for t := range loads {
		all[fmt.Sprint("load ", t)], all[fmt.Sprint("save ", t)] = loads[t].SQL, saves[t].SQL
	}
	return all
}

// FindIDWithin is FindID with a maximum number of pairs of account and type.
var FindIDWithin = findID

// ListObjectsInTx returns the first page of objects, read in a transaction.
func ListObjectsInTx(ctx context.Context, tx pgx.Tx, f ObjectFilter) (page events.Page[View], err error) {
	err = f.readPage(ctx, tx, &page, Key{Source: -1}, events.MaxLimit)
	return page, err
}
