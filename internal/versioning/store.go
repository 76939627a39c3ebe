package versioning

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/postgres"
)

// Key identifies an object.
type Key struct {
	// Source is the number of the source in table sources.
	Source  int32
	Account string
	Type    string
	ID      string
}

// SourceLock is the class of the advisory locks of sources. A transaction that writes objects of
// the mirror takes (SourceLock, number of the source) in shared mode, before it locks an object. An
// object scan finds the open batches of a source by it.
const SourceLock = 0x706f7374

// Hash returns the key of the object's advisory lock, which is also the column outcomes.object: 8
// bytes of SHA-256 over the length-prefixed parts, never 0.
func (k Key) Hash() int64 {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint32(n[:4], uint32(k.Source))
	h.Write(n[:4])
	for _, part := range [...]string{k.Account, k.Type, k.ID} {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	if v := int64(binary.BigEndian.Uint64(h.Sum(nil))); v != 0 {
		return v
	}
	return 1
}

// Compare orders keys by source, account, type and id.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Source, other.Source), cmp.Compare(k.Account, other.Account),
		cmp.Compare(k.Type, other.Type), cmp.Compare(k.ID, other.ID))
}

// KeyArgs returns the keys of some values as four arrays for a statement: the sources, accounts,
// types and ids.
func KeyArgs[T any](all []T, key func(T) Key) []any {
	n := len(all)
	sources, accounts, types, ids := make([]int32, n), make([]string, n), make([]string, n), make([]string, n)
	for i, v := range all {
		k := key(v)
		sources[i], accounts[i], types[i], ids[i] = k.Source, k.Account, k.Type, k.ID
	}
	return []any{sources, accounts, types, ids}
}

// ObjectKey returns Key.Hash for the parts of a key.
func ObjectKey(source int32, account, objectType, id string) int64 {
	return Key{Source: source, Account: account, Type: objectType, ID: id}.Hash()
}

// Object is an object's row with the stored values that are not part of the version rule.
type Object struct {
	Key
	Row
	// Revision grows by one when the state, deleted or ambiguous changes. It is 0 when the object
	// has only had partial events.
	Revision int64
	// LastEventID is the id of the event that gave the row its version.
	LastEventID int64
	// Exists means that the row is in the table; CreatedAt is when it was inserted.
	Exists    bool
	CreatedAt time.Time
	// ruleVersion is the RuleVersion that wrote the row.
	ruleVersion int32
	// readAt is the row's updated_at when it was read. Save writes only a row that still has it.
	readAt time.Time
	// loaded holds what readers saw when the row was read: the exact hash, ambiguous, and whether
	// there was a version.
	loaded struct {
		exactHash  Hash
		ambiguous  bool
		hasVersion bool
	}
}

// Outdated reports whether an older rule wrote the row. Such a row is written again even if it does
// not change.
func (o *Object) Outdated() bool { return o.Exists && o.ruleVersion != RuleVersion }

// UpdatedAt returns when the row was last changed, as it was read.
func (o *Object) UpdatedAt() time.Time { return o.readAt }

// NeedsRevision reports whether readers see a different object than the one that was read, so that
// the revision must grow.
func (o *Object) NeedsRevision() bool {
	if !o.loaded.hasVersion {
		return o.Version != NoVersion
	}
	return o.State.ExactHash != o.loaded.exactHash || o.Ambiguous != o.loaded.ambiguous
}

// ObjectTable names a table of objects. All these tables have the same columns and keys.
type ObjectTable int

// The tables of objects: the mirror, the staged objects of a rebuild, and the retained objects of
// dropped partitions.
const (
	Mirror ObjectTable = iota
	Staged
	RetainedObjects
)

// String returns the table's name in the database.
func (t ObjectTable) String() string {
	return [...]string{"objects", "staged_objects", "retained_objects"}[t]
}

// statements returns the statement for each table. The text of the statement names the table
// objects.
func statements(name, sql string) (all [RetainedObjects + 1]postgres.Statement) {
	for t := range all {
		table := ObjectTable(t).String()
		all[t] = postgres.Statement{Name: name + "_" + table, SQL: strings.NewReplacer(" objects o", " "+table+" o",
			" objects AS o", " "+table+" AS o").Replace(sql)}
	}
	return all
}

// loadSQL reads rows by key. It reads the state only when an input of exactly the row's version may
// join the tied states.
const loadSQL = `
SELECT d.n, o.version_final, o.version_at, o.version_seen, o.version_rank, o.tied_states, o.overflow, o.time_from,
	o.time_to, o.refetch_after,
  o.ambiguous, o.deleted, o.state_hash, o.exact_hash, CASE WHEN o.version_at BETWEEN d.lo AND d.hi THEN o.state END,
  	o.sanitized, o.last_event_id, o.revision, o.updated_at, o.rule_version, o.created_at, o.overwritten_at,
  		o.overwrite_seen
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[]) WITH ORDINALITY AS d(source,
	account, object_type, object_id, lo, hi, n)
CROSS JOIN LATERAL (SELECT o.* FROM objects o WHERE o.source = d.source AND o.account = d.account
	AND o.object_type = d.object_type
  AND o.object_id = d.object_id LIMIT 1) o`

var loads = statements("postern_load", loadSQL)

// LoadRequest is an object to load, and the range of Version.At of the inputs that will be applied
// to it.
type LoadRequest struct {
	Key
	MinAt, MaxAt int64
}

// Load reads objects in the order of the requests. An object that is not stored is returned as a
// new row. The caller holds the objects' locks until Save, so that no other writer changes them.
func Load(ctx context.Context, tx pgx.Tx, from ObjectTable, wanted []LoadRequest) ([]*Object, error) {
	objs := make([]*Object, len(wanted))
	for i, w := range wanted {
		objs[i] = &Object{Key: w.Key, Row: NewRow()}
	}
	p := loadParams(tx.Conn(), from, wanted)
	defer p.Release()
	if _, err := p.Run(ctx, func(stored postgres.Row) error { return readObject(stored, objs) }); err != nil {
		return nil, fmt.Errorf("load %d objects: %w", len(wanted), err)
	}
	return objs, nil
}

func loadParams(conn *pgx.Conn, from ObjectTable, wanted []LoadRequest) *postgres.Params {
	p, n := postgres.NewParams(conn, loads[from]), len(wanted)
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(wanted[i].Source) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(wanted[i].Account) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(wanted[i].Type) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(wanted[i].ID) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(wanted[i].MinAt) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(wanted[i].MaxAt) })
	return p
}

// readObject reads one row of loadSQL's result.
func readObject(stored postgres.Row, objs []*Object) (err error) {
	o := objs[stored.Int64(0)-1]
	o.Exists = true
	o.Version = Version{Final: stored.Bool(1), At: stored.Int64(2), Seen: stored.Int64(3), Rank: int16(stored.Int64(4))}
	o.Overflow, o.TimeFrom, o.TimeTo = stored.Bool(6), stored.Int64(7), stored.Int64(8)
	o.RefetchAfter, o.Ambiguous = stored.Int64(9), stored.Bool(10)
	o.State = State{Deleted: stored.Bool(11), JSON: bytes.Clone(stored.JSON(14)), Sanitized: stored.Bool(15)}
	copy(o.State.Hash[:], stored.Bytes(12))
	copy(o.State.ExactHash[:], stored.Bytes(13))
	o.LastEventID, o.Revision, o.readAt = stored.Int64(16), stored.Int64(17), stored.Time(18)
	o.ruleVersion, o.CreatedAt = int32(stored.Int64(19)), stored.Time(20)
	o.OverwrittenAt, o.OverwriteBegan = stored.Int64(21), stored.Int64(22)
	o.loaded.exactHash, o.loaded.ambiguous, o.loaded.hasVersion = o.State.ExactHash, o.Ambiguous, o.Version != NoVersion
	if err = DecodeTiedStates(stored.JSON(5), &o.Row); err != nil {
		return fmt.Errorf("object %s %s: %w", o.Type, o.ID, err)
	}
	return nil
}

// saveSQL writes one row per object and enforces the rule again. It writes a row only if:
//
//   - the version does not go down, unless an operator overwrites the object,
//   - the revision grows by one exactly when readers see a difference,
//   - no other writer has changed the row since it was read.
//
// The caller compares the count of written rows. For an existing row, excluded.created_at carries
// the updated_at that was read. The states are one text with their positions in it, because
// PostgreSQL would copy an array of them several times.
const saveSQL = `
INSERT INTO objects AS o (source, account, object_type, object_id, version_final, version_at, version_seen,
	version_rank, tied_states, overflow,
  time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id,
  	revision, rule_version, created_at, updated_at, overwritten_at,
  overwrite_seen)
SELECT d.source, d.account, d.object_type, d.object_id, d.final, d.at, d.seen, d.rank, d.tied_states, d.overflow, d.lo,
	d.hi, d.refetch_after,
  d.ambiguous, d.deleted, d.state_hash, d.exact_hash, CASE WHEN d.state_len > 0 THEN convert_from(substr($26::bytea,
  	d.state_at, d.state_len), 'UTF8')::jsonb END,
  d.sanitized, d.last_event_id, d.revision, $22, coalesce(d.read_at, now.at), now.at, d.overwritten_at, d.overwrite_seen
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::bigint[], $7::bigint[], $8::smallint[],
	$9::jsonb[], $10::bool[],
  $11::bigint[], $12::bigint[], $13::bigint[], $14::bool[], $15::bool[], $16::bytea[], $17::bytea[], $18::int[],
  	$24::int[], $19::bool[], $20::bigint[],
  $21::bigint[], $23::timestamptz[], $25::bigint[], $27::bigint[]) AS d(source, account, object_type, object_id, final,
  	at, seen, rank, tied_states, overflow, lo, hi, refetch_after, ambiguous, deleted,
    state_hash, exact_hash, state_at, state_len, sanitized, last_event_id, revision, read_at, overwritten_at,
    	overwrite_seen),
  (SELECT clock_now() AS at) now
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET
  version_final = excluded.version_final, version_at = excluded.version_at, version_seen = excluded.version_seen,
  	version_rank = excluded.version_rank,
  tied_states = excluded.tied_states, overflow = excluded.overflow, time_from = excluded.time_from,
  	time_to = excluded.time_to,
  refetch_after = excluded.refetch_after, ambiguous = excluded.ambiguous, deleted = excluded.deleted,
  	state_hash = excluded.state_hash,
  state = CASE WHEN o.exact_hash = excluded.exact_hash THEN o.state ELSE excluded.state END,
  sanitized = CASE WHEN o.exact_hash = excluded.exact_hash THEN o.sanitized ELSE excluded.sanitized END,
  exact_hash = excluded.exact_hash, last_event_id = excluded.last_event_id, revision = excluded.revision,
  	rule_version = excluded.rule_version,
  updated_at = excluded.updated_at, overwritten_at = excluded.overwritten_at, overwrite_seen = excluded.overwrite_seen
WHERE (o.overwritten_at, o.version_final, o.version_at, o.version_seen, o.version_rank)
   <= (excluded.overwritten_at, excluded.version_final, excluded.version_at, excluded.version_seen,
   	excluded.version_rank)
  AND excluded.created_at = o.updated_at
  AND excluded.revision = o.revision + CASE WHEN o.exact_hash <> excluded.exact_hash
  	OR o.ambiguous <> excluded.ambiguous
    OR (o.version_at = -9223372036854775808 AND excluded.version_at > o.version_at) THEN 1 ELSE 0 END`

var saves = statements("postern_save", saveSQL)

// lockRowsSQL locks rows one after the other, in the order of its arguments.
const lockRowsSQL = `
SELECT count(*) FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS d(source, account, object_type, object_id)
CROSS JOIN LATERAL (SELECT FROM objects o WHERE o.source = d.source AND o.account = d.account
	AND o.object_type = d.object_type AND o.object_id = d.object_id LIMIT 1 FOR NO KEY UPDATE) o`

// LockRows locks the rows of some objects of the mirror until the transaction ends. All
// transactions lock these rows in the order of Key.Compare, as Save does, so that they cannot
// deadlock. keys are in this order.
func LockRows(ctx context.Context, tx pgx.Tx, keys []Key) error {
	args := KeyArgs(keys, func(k Key) Key { return k })
	if _, err := tx.Exec(ctx, lockRowsSQL, args...); err != nil {
		return fmt.Errorf("lock the rows of %d objects: %w", len(keys), err)
	}
	return nil
}

// Save writes objects, each at most once and in the order of LockRows, and sets their revisions.
// After an error the caller must roll the transaction back.
func Save(ctx context.Context, tx pgx.Tx, into ObjectTable, objs []*Object) error {
	objs = slices.SortedFunc(slices.Values(objs), func(a, b *Object) int { return a.Compare(b.Key) })
	p, err := saveParams(tx.Conn(), into, objs)
	if err != nil {
		return err
	}
	defer p.Release()
	n, err := p.Run(ctx, nil)
	if err != nil {
		return fmt.Errorf("save %d objects: %w", len(objs), err)
	}
	if n != int64(len(objs)) {
		return fmt.Errorf("save %d objects: only %d were unchanged since they were read", len(objs), n)
	}
	return nil
}

// saveParams builds the parameters of saveSQL. It copies each state once.
func saveParams(conn *pgx.Conn, into ObjectTable, objs []*Object) (*postgres.Params, error) {
	tiedStates, stateBytes := make([][]byte, len(objs)), 0
	for i, o := range objs {
		if o.NeedsRevision() {
			o.Revision++
		}
		tied, err := EncodeTiedStates(&o.Row)
		if err != nil {
			return nil, fmt.Errorf("encode tied states of %s %s: %w", o.Type, o.ID, err)
		}
		tiedStates[i] = tied
		stateBytes += len(o.State.JSON)
	}
	p := postgres.NewParams(conn, saves[into])
	addVersions(p, objs, tiedStates)
	addStates(p, objs)
	p.Grow(stateBytes)
	p.Join(len(objs), func(i int) []byte { return objs[i].State.JSON })
	p.Array(pgtype.Int8OID, len(objs), func(i int) { p.Int64(objs[i].OverwriteBegan) })
	return p, nil
}

func addVersions(p *postgres.Params, objs []*Object, tiedStates [][]byte) {
	n := len(objs)
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(objs[i].Source) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(objs[i].Account) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(objs[i].Type) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(objs[i].ID) })
	p.Array(pgtype.BoolOID, n, func(i int) { p.Bool(objs[i].Version.Final) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].Version.At) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].Version.Seen) })
	p.Array(pgtype.Int2OID, n, func(i int) { p.Int16(objs[i].Version.Rank) })
	p.Array(pgtype.JSONBOID, n, func(i int) { p.JSON(tiedStates[i]) })
	p.Array(pgtype.BoolOID, n, func(i int) { p.Bool(objs[i].Overflow) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].TimeFrom) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].TimeTo) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].RefetchAfter) })
	p.Array(pgtype.BoolOID, n, func(i int) { p.Bool(objs[i].Ambiguous) })
}

// addStates adds the columns of the states, and the position (from 1) of each state in the text of
// all states.
func addStates(p *postgres.Params, objs []*Object) {
	n, at := len(objs), 1
	p.Array(pgtype.BoolOID, n, func(i int) { p.Bool(objs[i].State.Deleted) })
	p.Array(pgtype.ByteaOID, n, func(i int) { p.Bytes(objs[i].State.Hash[:]) })
	p.Array(pgtype.ByteaOID, n, func(i int) { p.Bytes(objs[i].State.ExactHash[:]) })
	p.Array(pgtype.Int4OID, n, func(i int) {
		p.Int32(int32(at))
		at += len(objs[i].State.JSON)
	})
	p.Array(pgtype.BoolOID, n, func(i int) { p.Bool(objs[i].State.Sanitized) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].LastEventID) })
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].Revision) })
	p.Int32(RuleVersion)
	p.Array(pgtype.TimestamptzOID, n, func(i int) {
		if objs[i].Exists {
			p.Time(objs[i].readAt)
		} else {
			p.Null()
		}
	})
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(int32(len(objs[i].State.JSON))) }) // 0 means null
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(objs[i].OverwrittenAt) })
}
