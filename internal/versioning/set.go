package versioning

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
)

// storedMember is a Member as the tie_set column has it. The only member of a set, as nearly all are, leaves out what the row's own
// columns say of it: hash, exact, deleted, repaired, lo, hi and state.
type storedMember struct {
	Before   *[]byte         `json:"before,omitempty"`
	Hash     []byte          `json:"hash,omitempty"`
	Exact    []byte          `json:"exact,omitempty"` // left out where it equals hash
	Deleted  bool            `json:"deleted,omitempty"`
	Repaired bool            `json:"repaired,omitempty"`
	Look     bool            `json:"look,omitempty"`
	Lo       int64           `json:"lo,omitempty"`
	Hi       int64           `json:"hi,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
}

// EncodeSet writes a row's set as compact JSON for the tie_set column. Members carry their state's JSON only while the
// set holds a state other than the shown one; otherwise the row's own state column has it. A member whose JSON would have
// to be written but is not there (the row was read without its state) is an error: its state would be lost.
func EncodeSet(row *Row) ([]byte, error) {
	if alone(row) {
		return appendAlone(make([]byte, 0, 80), row.Set[0]), nil
	}
	differ := slices.ContainsFunc(row.Set, func(m Member) bool { return m.State.Exact != row.State.Exact })
	stored := make([]storedMember, len(row.Set))
	for i, m := range row.Set {
		stored[i] = store(m)
		if !differ {
			continue
		}
		if m.State.JSON == nil && m.State.Exact != NullState(m.State.Deleted).Exact {
			return nil, fmt.Errorf("encode tie set: the state %x was read without its JSON", m.State.Exact[:8])
		}
		stored[i].State = m.State.JSON
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return nil, fmt.Errorf("encode tie set: %w", err)
	}
	return text, nil
}

// alone says whether the row's columns tell all of its only member but where it came from.
func alone(row *Row) bool {
	if len(row.Set) != 1 {
		return false
	}
	m, s := &row.Set[0], &row.State
	return m.Lo == row.Lo && m.Hi == row.Hi && m.State.Exact == s.Exact && m.State.Hash == s.Hash && m.State.Deleted == s.Deleted && m.State.Repaired == s.Repaired
}

// appendAlone is by hand what encoding/json would write, since nearly every applied event writes one.
func appendAlone(dst []byte, m Member) []byte {
	dst = append(dst, '[', '{')
	if m.Before != nil {
		dst = append(base64.StdEncoding.AppendEncode(append(dst, `"before":"`...), m.Before[:]), '"')
	}
	if m.Look {
		if m.Before != nil {
			dst = append(dst, ',')
		}
		dst = append(dst, `"look":true`...)
	}
	return append(dst, '}', ']')
}

func store(m Member) storedMember {
	s := storedMember{
		Hash: m.State.Hash[:], Deleted: m.State.Deleted, Repaired: m.State.Repaired,
		Look: m.Look, Lo: m.Lo, Hi: m.Hi,
	}
	if m.State.Exact != m.State.Hash {
		s.Exact = m.State.Exact[:]
	}
	if m.Before != nil {
		b := m.Before[:]
		s.Before = &b
	}
	return s
}

// DecodeSet reads into Row.Set what EncodeSet wrote of a row whose other columns are as they were. Where all members are in
// the shown state their JSON is left nil: the caller puts the row's state into Row.State and Apply passes it on, so that an
// earlier member keeps its JSON when a differing one joins. A row that will not be joined may stay without.
func DecodeSet(text []byte, row *Row) error {
	var stored []storedMember
	if err := json.Unmarshal(text, &stored); err != nil {
		return fmt.Errorf("decode tie set: %w", err)
	}
	if len(stored) == 1 && stored[0].Hash == nil {
		stored[0].Hash, stored[0].Exact = row.State.Hash[:], row.State.Exact[:]
		stored[0].Deleted, stored[0].Repaired, stored[0].Lo, stored[0].Hi = row.State.Deleted, row.State.Repaired, row.Lo, row.Hi
	}
	set := make([]Member, len(stored))
	for i, s := range stored {
		m, err := load(s)
		if err != nil {
			return fmt.Errorf("decode tie set: member %d: %w", i, err)
		}
		set[i] = m
	}
	row.Set = set
	return nil
}

func load(s storedMember) (Member, error) {
	m := Member{Look: s.Look, Lo: s.Lo, Hi: s.Hi}
	m.State = State{Deleted: s.Deleted, Repaired: s.Repaired, JSON: s.State}
	if s.Exact == nil {
		s.Exact = s.Hash
	}
	if err := loadHash(&m.State.Hash, s.Hash); err != nil {
		return Member{}, err
	}
	if err := loadHash(&m.State.Exact, s.Exact); err != nil {
		return Member{}, err
	}
	if s.Before != nil {
		m.Before = new(Hash)
		return m, loadHash(m.Before, *s.Before)
	}
	return m, nil
}

func loadHash(h *Hash, b []byte) error {
	if copy(h[:], b) != len(h) || len(b) != len(h) {
		return fmt.Errorf("a hash of %d bytes instead of %d", len(b), len(h))
	}
	return nil
}
