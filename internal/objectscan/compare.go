package objectscan

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// compareSQL compares objects with their rows and returns those that are not plainly equal, in the
// order of $4. Without a row all columns but n are null. $5 are hashes of states and $6 object
// versions; an object has both, one, or none. $7: no two states share a version, so that no refetch
// is needed to confirm a state.
const compareSQL = `
SELECT d.n, o.version_final, o.version_at, o.version_seen, o.version_rank, o.time_from, o.time_to, o.ambiguous,
	o.deleted, o.state_hash
FROM unnest($4::text[], $5::bytea[], $6::bigint[]) WITH ORDINALITY AS d(id, hash, at, n)
LEFT JOIN LATERAL (SELECT o.version_final, o.version_at, o.version_seen, o.version_rank, o.time_from, o.time_to,
	o.ambiguous, o.deleted, o.state_hash FROM objects o
  WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = d.id LIMIT 1) o ON true
WHERE (NOT o.ambiguous AND o.version_at > -9223372036854775808 AND (o.state_hash = d.hash
	AND (d.at IS NULL OR o.version_at >= d.at)
  OR d.hash IS NULL AND d.at = o.version_at AND NOT o.deleted AND (o.version_seen > 0 OR $7))) IS NOT TRUE`

var compareStatement = postgres.Statement{Name: "postern_compare", SQL: compareSQL}

// compare classifies items by their rows.
func (s *objectScan) compare(ctx context.Context, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	conn, err := s.Pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("compare %d objects: %w", len(items), err)
	}
	defer conn.Release()
	uniqueVersions := s.list.CountsChanges || s.Params.DryRun // a dry run makes no calls for it
	for _, it := range items {
		it.kind, it.row, it.listedSince, it.uniqueVersions = equal, nil, s.listedSince.UnixMicro(), uniqueVersions
	}
	p := postgres.NewParams(conn.Conn(), compareStatement)
	defer p.Release()
	p.Int32(s.Source.Number)
	p.Text(s.Params.Account)
	p.Text(s.objectType)
	p.Array(pgtype.TextOID, len(items), func(i int) { p.Text(items[i].id) })
	p.Array(pgtype.ByteaOID, len(items), func(i int) {
		if it := items[i]; it.refetch != nil && it.problem == "" {
			p.Bytes(it.input.State.Hash[:])
		} else {
			p.Null()
		}
	})
	p.Array(pgtype.Int8OID, len(items), func(i int) {
		switch it := items[i]; {
		case it.problem == "" && it.refetch != nil && it.input.OwnVersion:
			p.Int64(it.input.Version.At)
		case it.problem == "" && it.refetch == nil && it.hasAt:
			p.Int64(it.at)
		default:
			p.Null()
		}
	})
	p.Bool(uniqueVersions)
	if _, err := p.Run(ctx, func(row postgres.Row) error {
		it := items[row.Int64(0)-1]
		it.row = scanMirrorRow(row)
		it.kind = classify(it.row, it)
		return nil
	}); err != nil {
		return fmt.Errorf("compare %d objects: %w", len(items), err)
	}
	return nil
}

// scanMirrorRow reads a row of compareSQL. It returns nil if the mirror has no such object.
func scanMirrorRow(row postgres.Row) *mirrorRow {
	if row[2] == nil {
		return nil
	}
	k := &mirrorRow{version: versioning.Version{Final: row.Bool(1), At: row.Int64(2), Seen: row.Int64(3),
		Rank: int16(row.Int64(4))}, lo: row.Int64(5), hi: row.Int64(6), ambiguous: row.Bool(7), deleted: row.Bool(8)}
	copy(k.hash[:], row.Bytes(9))
	return k
}
