package versioning

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Key names an object.
type Key struct {
	// Source is the number of the source in table sources.
	Source  int32
	Account string
	Type    string
	ID      string
}

// Hash is the object's lock and its column outcomes.object: 8 bytes of SHA-256 over the length-prefixed parts, never 0.
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

// ObjectKey is Key.Hash of the parts.
func ObjectKey(source int32, account, objectType, id string) int64 {
	return Key{Source: source, Account: account, Type: objectType, ID: id}.Hash()
}

// Object is an object's row with what is stored beside the rule's own part.
type Object struct {
	Key
	Row
	// Revision grows by one when state, deleted or ambiguous changes; 0 where only partial events were seen.
	Revision int64
	// LastEvent is the id of the event whose version the row has.
	LastEvent int64
	// Exists: the row is in the table.
	Exists bool
	// readAt is the row's updated_at as read: who writes must have read the row as it is.
	readAt *time.Time
	// was is what readers saw before: exact hash, ambiguous, and whether there was a version at all.
	was struct {
		exact     Hash
		ambiguous bool
		version   bool
	}
}

// Grew says whether the object's revision must grow: what readers see differs from what was read.
func (o *Object) Grew() bool {
	if !o.was.version {
		return o.Version != NoVersion
	}
	return o.State.Exact != o.was.exact || o.Ambiguous != o.was.ambiguous
}

// loadSQL reads rows by key. The state comes along only where an event of the very version may join its tie set.
const loadSQL = `
SELECT d.n, o.version_final, o.version_at, o.version_seen, o.version_rank, o.tie_set, o.overflow, o.window_lo, o.window_hi, o.look_after,
  o.ambiguous, o.deleted, o.state_hash, o.exact_hash, CASE WHEN o.version_at BETWEEN d.lo AND d.hi THEN o.state END, o.repaired, o.last_event_id, o.revision, o.updated_at
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[]) WITH ORDINALITY AS d(source, account, object_type, object_id, lo, hi, n)
CROSS JOIN LATERAL (SELECT o.* FROM objects o WHERE o.source = d.source AND o.account = d.account AND o.object_type = d.object_type
  AND o.object_id = d.object_id LIMIT 1) o`

// Wanted is an object to load and the range of Version.At of what will be applied to it.
type Wanted struct {
	Key
	Lo, Hi int64
}

// Load reads objects, in the order asked for; one that is not stored comes as a new row. The caller holds the objects' locks, so
// that nothing changes until Save.
func Load(ctx context.Context, tx pgx.Tx, wanted []Wanted) ([]*Object, error) {
	n := len(wanted)
	objs := make([]*Object, n)
	sources, los, his := make([]int32, n), make([]int64, n), make([]int64, n)
	accounts, types, ids := make([]string, n), make([]string, n), make([]string, n)
	for i, w := range wanted {
		objs[i] = &Object{Key: w.Key, Row: NewRow()}
		sources[i], accounts[i], types[i], ids[i], los[i], his[i] = w.Source, w.Account, w.Type, w.ID, w.Lo, w.Hi
	}
	rows, err := tx.Query(ctx, loadSQL, sources, accounts, types, ids, los, his)
	if err != nil {
		return nil, fmt.Errorf("load %d objects: %w", n, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scanObject(rows, objs); err != nil {
			return nil, fmt.Errorf("load objects: %w", err)
		}
	}
	return objs, rows.Err()
}

func scanObject(rows pgx.Rows, objs []*Object) error {
	var r Object
	var n int64
	var set, stateHash, exact []byte
	if err := rows.Scan(&n, &r.Version.Final, &r.Version.At, &r.Version.Seen, &r.Version.Rank, &set, &r.Overflow, &r.Lo, &r.Hi, &r.LookAfter,
		&r.Ambiguous, &r.State.Deleted, &stateHash, &exact, &r.State.JSON, &r.State.Repaired, &r.LastEvent, &r.Revision, &r.readAt); err != nil {
		return err
	}
	o := objs[n-1]
	r.Key, r.Exists = o.Key, true
	copy(r.State.Hash[:], stateHash)
	copy(r.State.Exact[:], exact)
	r.was.exact, r.was.ambiguous, r.was.version = r.State.Exact, r.Ambiguous, r.Version != NoVersion
	var err error
	if r.Set, err = DecodeSet(set, &r.Row); err != nil {
		return fmt.Errorf("object %s %s: %w", o.Type, o.ID, err)
	}
	*o = r
	return nil
}

// saveSQL writes one row per object and enforces the rule again: the version never goes down, the revision is the one that was
// read plus what this write adds, and the row is the one that was read. An object that somebody else wrote meanwhile is not
// touched, which the caller sees in the count. For a row that exists, excluded.created_at carries its updated_at as read. The
// states come as one text with their places in it: an array of them would be copied several times on both sides.
const saveSQL = `
INSERT INTO objects AS o (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank, tie_set, overflow,
  window_lo, window_hi, look_after, ambiguous, deleted, state_hash, exact_hash, state, repaired, last_event_id, revision, rule_version, created_at, updated_at)
SELECT d.source, d.account, d.object_type, d.object_id, d.final, d.at, d.seen, d.rank, d.tie_set, d.overflow, d.lo, d.hi, d.look_after,
  d.ambiguous, d.deleted, d.state_hash, d.exact_hash, CASE WHEN d.state_len > 0 THEN convert_from(substr($25::bytea, d.state_at, d.state_len), 'UTF8')::jsonb END,
  d.repaired, d.last_event_id, d.revision, $22, coalesce(d.read_at, now.at), now.at
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::bigint[], $7::bigint[], $8::smallint[], $9::jsonb[], $10::bool[],
  $11::bigint[], $12::bigint[], $13::bigint[], $14::bool[], $15::bool[], $16::bytea[], $17::bytea[], $18::int[], $24::int[], $19::bool[], $20::bigint[],
  $21::bigint[], $23::timestamptz[]) AS d(source, account, object_type, object_id, final, at, seen, rank, tie_set, overflow, lo, hi, look_after, ambiguous, deleted,
    state_hash, exact_hash, state_at, state_len, repaired, last_event_id, revision, read_at),
  (SELECT clock_now() AS at) now
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET
  version_final = excluded.version_final, version_at = excluded.version_at, version_seen = excluded.version_seen, version_rank = excluded.version_rank,
  tie_set = excluded.tie_set, overflow = excluded.overflow, window_lo = excluded.window_lo, window_hi = excluded.window_hi,
  look_after = excluded.look_after, ambiguous = excluded.ambiguous, deleted = excluded.deleted, state_hash = excluded.state_hash,
  state = CASE WHEN o.exact_hash = excluded.exact_hash THEN o.state ELSE excluded.state END,
  repaired = CASE WHEN o.exact_hash = excluded.exact_hash THEN o.repaired ELSE excluded.repaired END,
  exact_hash = excluded.exact_hash, last_event_id = excluded.last_event_id, revision = excluded.revision, rule_version = excluded.rule_version,
  updated_at = excluded.updated_at
WHERE (o.version_final, o.version_at, o.version_seen, o.version_rank)
   <= (excluded.version_final, excluded.version_at, excluded.version_seen, excluded.version_rank)
  AND excluded.created_at = o.updated_at
  AND excluded.revision = o.revision + CASE WHEN o.exact_hash <> excluded.exact_hash OR o.ambiguous <> excluded.ambiguous
    OR (o.version_at = -9223372036854775808 AND excluded.version_at > o.version_at) THEN 1 ELSE 0 END`

// Save writes objects, each at most once, and sets their revisions. An error leaves the transaction to be rolled back.
func Save(ctx context.Context, tx pgx.Tx, objs []*Object) error {
	args, err := saveArgs(objs)
	if err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, saveSQL, args...)
	if err != nil {
		return fmt.Errorf("save %d objects: %w", len(objs), err)
	}
	if tag.RowsAffected() != int64(len(objs)) {
		return fmt.Errorf("save %d objects: only %d were as they had been read", len(objs), tag.RowsAffected())
	}
	return nil
}

func saveArgs(objs []*Object) ([]any, error) {
	n := len(objs)
	sources, ranks := make([]int32, n), make([]int16, n)
	accounts, types, ids := make([]string, n), make([]string, n), make([]string, n)
	finals, overflows, ambiguous, deleted, repaired := make([]bool, n), make([]bool, n), make([]bool, n), make([]bool, n), make([]bool, n)
	ats, seens, los, his := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	looks, lasts, revisions := make([]int64, n), make([]int64, n), make([]int64, n)
	reads := make([]*time.Time, n)
	sets, hashes, exacts := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	states, stateAts, stateLens := joinStates(objs)
	for i, o := range objs {
		if o.Grew() {
			o.Revision++
		}
		set, err := EncodeSet(&o.Row)
		if err != nil {
			return nil, fmt.Errorf("encode tie set of %s %s: %w", o.Type, o.ID, err)
		}
		sources[i], accounts[i], types[i], ids[i] = o.Source, o.Account, o.Type, o.ID
		finals[i], ats[i], seens[i], ranks[i] = o.Version.Final, o.Version.At, o.Version.Seen, o.Version.Rank
		sets[i], overflows[i], los[i], his[i], looks[i] = set, o.Overflow, o.Lo, o.Hi, o.LookAfter
		ambiguous[i], deleted[i], repaired[i] = o.Ambiguous, o.State.Deleted, o.State.Repaired
		hashes[i], exacts[i] = o.State.Hash[:], o.State.Exact[:]
		lasts[i], revisions[i], reads[i] = o.LastEvent, o.Revision, o.readAt
	}
	return []any{sources, accounts, types, ids, finals, ats, seens, ranks, sets, overflows, los, his, looks, ambiguous, deleted, hashes,
		exacts, stateAts, repaired, lasts, revisions, RuleVersion, reads, stateLens, states}, nil
}

// joinStates is the JSON of all states in one text, and where each is in it, from 1 on; a null one has no length.
func joinStates(objs []*Object) (all []byte, at, length []int32) {
	size := 0
	for _, o := range objs {
		size += len(o.State.JSON)
	}
	all = make([]byte, 0, size)
	at, length = make([]int32, len(objs)), make([]int32, len(objs))
	for i, o := range objs {
		at[i], length[i] = int32(len(all)+1), int32(len(o.State.JSON))
		all = append(all, o.State.JSON...)
	}
	return all, at, length
}

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string { return append(listStatements(), loadSQL, saveSQL) }
