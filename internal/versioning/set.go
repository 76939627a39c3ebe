package versioning

import (
	"encoding/json"
	"fmt"
	"slices"
)

// storedMember is a Member as the tie_set column has it.
type storedMember struct {
	Before   *[]byte         `json:"before,omitempty"`
	Hash     []byte          `json:"hash"`
	Exact    []byte          `json:"exact,omitempty"` // left out where it equals hash
	Deleted  bool            `json:"deleted,omitempty"`
	Repaired bool            `json:"repaired,omitempty"`
	Look     bool            `json:"look,omitempty"`
	Lo       int64           `json:"lo"`
	Hi       int64           `json:"hi"`
	State    json.RawMessage `json:"state,omitempty"`
}

// EncodeSet writes a row's set as compact JSON for the tie_set column. Members carry their state's JSON only while the
// set holds a state other than the shown one; otherwise the row's own state column has it. A member whose JSON would have
// to be written but is not there (the row was read without its state) is an error: its state would be lost.
func EncodeSet(set []Member, shown State) ([]byte, error) {
	differ := slices.ContainsFunc(set, func(m Member) bool { return m.State.Exact != shown.Exact })
	stored := make([]storedMember, len(set))
	for i, m := range set {
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

// DecodeSet reads what EncodeSet wrote. Where all members are in the shown state their JSON is left nil: the caller puts
// the row's state into Row.State and Apply passes it on, so that an earlier member keeps its JSON when a differing one
// joins. A row that will not be joined may stay without.
func DecodeSet(text []byte) ([]Member, error) {
	var stored []storedMember
	if err := json.Unmarshal(text, &stored); err != nil {
		return nil, fmt.Errorf("decode tie set: %w", err)
	}
	set := make([]Member, len(stored))
	for i, s := range stored {
		m, err := load(s)
		if err != nil {
			return nil, fmt.Errorf("decode tie set: member %d: %w", i, err)
		}
		set[i] = m
	}
	return set, nil
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
