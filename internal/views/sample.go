package views

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

// The limits of a sample: objects of a type, accounts that they are from, and pairs of account and
// type that are read to find both.
const (
	sampleObjects  = 1000
	sampleAccounts = 100
	maxPairs       = 20_000
)

// typesSQL returns the accounts and types of a source. It steps over them by the primary key.
const typesSQL = `
WITH RECURSIVE hop AS (
  (SELECT o.account, o.object_type FROM objects o WHERE o.source = $1 ORDER BY o.account, o.object_type LIMIT 1)
  UNION ALL
  SELECT f.* FROM hop h CROSS JOIN LATERAL (
    SELECT o.account, o.object_type FROM objects o
    WHERE o.source = $1 AND (o.account, o.object_type) > (h.account, h.object_type)
    ORDER BY o.account, o.object_type LIMIT 1) f
)
SELECT account, object_type FROM hop LIMIT $2`

// readTypes returns the types of a source's objects, each with some accounts that have it.
func readTypes(ctx context.Context, db postgres.Querier, source int32) (map[string][]string, error) {
	types := map[string][]string{}
	var account, objectType string
	err := postgres.ForEach(ctx, db, typesSQL, []any{source, maxPairs}, []any{&account, &objectType}, func() error {
		// The last one is replaced, so that the accounts are not only the first.
		if accounts := types[objectType]; len(accounts) >= sampleAccounts {
			accounts[sampleAccounts-1] = account
			return nil
		}
		types[objectType] = append(types[objectType], account)
		return nil
	})
	return types, err
}

// fieldsSQL returns what a sample of a type's states shows of each field, the most frequent fields
// first. The sample has the highest ids of each account, which are the newest objects where ids
// grow. It leaves out very large states.
const fieldsSQL = `
SELECT f.key, count(*) FILTER (WHERE v.kind = 'string'), count(*) FILTER (WHERE v.kind = 'boolean'),
  count(*) FILTER (WHERE v.kind = 'number'), count(*) FILTER (WHERE v.kind IN ('object', 'array')),
  coalesce(bool_and(as_bigint(f.value) IS NOT NULL) FILTER (WHERE v.kind = 'number'), false),
  coalesce(bool_and(as_bigint(f.value) BETWEEN 1e9 AND 4e9) FILTER (WHERE v.kind = 'number'), false),
  coalesce(bool_and(as_bigint(f.value) BETWEEN 1e12 AND 4e12) FILTER (WHERE v.kind = 'number'), false),
  coalesce(bool_and(as_time(v.text) IS NOT NULL) FILTER (WHERE v.kind = 'string' AND v.text <> ''), false),
  coalesce(bool_and(as_numeric(v.text) IS NOT NULL) FILTER (WHERE v.kind = 'string' AND v.text <> ''), false),
  coalesce(bool_and(v.text = s.object_id) FILTER (WHERE v.kind <> 'null'), false)
FROM unnest($3::text[]) AS a(account) CROSS JOIN LATERAL (
  SELECT o.object_id, o.state FROM objects o
  WHERE o.source = $1 AND o.account = a.account AND o.object_type = $2 ORDER BY o.object_id DESC LIMIT $4
) s CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(s.state) = 'object' THEN s.state END) f
CROSS JOIN LATERAL (SELECT jsonb_typeof(f.value) AS kind, f.value #>> '{}' AS text OFFSET 0) v
WHERE pg_column_size(s.state) <= 256 * 1024
GROUP BY f.key ORDER BY count(*) DESC, f.key LIMIT $5`

// readFields samples the states of a type.
func readFields(ctx context.Context, db postgres.Querier, source int32, objectType string,
	accounts []string) ([]seenField, error) {
	each := (sampleObjects + len(accounts) - 1) / max(len(accounts), 1)
	fields, err := postgres.Collect(ctx, db, pgx.RowToStructByPos[seenField], fieldsSQL, source, objectType, accounts,
		each, maxColumns)
	return slices.Clip(fields), err
}
