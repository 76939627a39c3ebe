package versioning

import (
	"context"
	"fmt"
	"iter"

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

// ListObjectsInTx returns the page of objects after a key, read in a transaction.
func ListObjectsInTx(ctx context.Context, tx pgx.Tx, f ObjectFilter, after Key, windows iter.Seq[int], limit int) (
	page events.Page[View], err error) {
	err = f.readPage(ctx, tx, &page, after, windows, limit)
	return page, err
}
