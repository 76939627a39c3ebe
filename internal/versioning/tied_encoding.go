package versioning

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
)

// storedTiedState is a TiedState as the tied_states column stores it. Nearly all rows have a single
// tied state. A single tied state leaves out the values that the row's columns have: hash, exact,
// deleted, sanitized, time_from, time_to and state.
type storedTiedState struct {
	Before      *[]byte         `json:"before,omitempty"`
	Hash        []byte          `json:"hash,omitempty"`
	ExactHash   []byte          `json:"exact,omitempty"` // left out when it equals hash
	Deleted     bool            `json:"deleted,omitempty"`
	Sanitized   bool            `json:"sanitized,omitempty"`
	FromRefetch bool            `json:"from_refetch,omitempty"`
	TimeFrom    int64           `json:"time_from,omitempty"`
	TimeTo      int64           `json:"time_to,omitempty"`
	State       json.RawMessage `json:"state,omitempty"`
}

// EncodeTiedStates returns a row's tied states as compact JSON for the tied_states column. They
// carry the JSON of their states only while one of them differs from the shown state; otherwise the
// row's state column has it. It fails when it must write a state that was not read (the row was
// read without its state), because that state would be lost.
func EncodeTiedStates(row *Row) ([]byte, error) {
	if hasImpliedState(row) {
		return appendImplied(make([]byte, 0, 80), row.TiedStates[0]), nil
	}
	differ := slices.ContainsFunc(row.TiedStates,
		func(m TiedState) bool { return m.State.ExactHash != row.State.ExactHash })
	stored := make([]storedTiedState, len(row.TiedStates))
	for i, m := range row.TiedStates {
		stored[i] = toStored(m)
		if !differ {
			continue
		}
		if m.State.JSON == nil && m.State.ExactHash != NullState(m.State.Deleted).ExactHash {
			return nil, fmt.Errorf("encode tied states: the state %x was read without its JSON", m.State.ExactHash[:8])
		}
		stored[i].State = m.State.JSON
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return nil, fmt.Errorf("encode tied states: %w", err)
	}
	return text, nil
}

// hasImpliedState reports whether the row's columns give all values of its single tied state except
// its change-set and origin.
func hasImpliedState(row *Row) bool {
	if len(row.TiedStates) != 1 {
		return false
	}
	m, s := &row.TiedStates[0], &row.State
	return m.TimeFrom == row.TimeFrom && m.TimeTo == row.TimeTo && m.State.ExactHash == s.ExactHash &&
		m.State.Hash == s.Hash && m.State.Deleted == s.Deleted && m.State.Sanitized == s.Sanitized
}

// appendImplied writes the same text as encoding/json. It is written by hand because nearly every
// applied event uses it.
func appendImplied(dst []byte, m TiedState) []byte {
	dst = append(dst, '[', '{')
	if m.Before != nil {
		dst = append(base64.StdEncoding.AppendEncode(append(dst, `"before":"`...), m.Before[:]), '"')
	}
	if m.FromRefetch {
		if m.Before != nil {
			dst = append(dst, ',')
		}
		dst = append(dst, `"from_refetch":true`...)
	}
	return append(dst, '}', ']')
}

func toStored(m TiedState) storedTiedState {
	s := storedTiedState{
		Hash: m.State.Hash[:], Deleted: m.State.Deleted, Sanitized: m.State.Sanitized,
		FromRefetch: m.FromRefetch, TimeFrom: m.TimeFrom, TimeTo: m.TimeTo,
	}
	if m.State.ExactHash != m.State.Hash {
		s.ExactHash = m.State.ExactHash[:]
	}
	if m.Before != nil {
		b := m.Before[:]
		s.Before = &b
	}
	return s
}

// DecodeTiedStates reads the output of EncodeTiedStates into Row.TiedStates. The row's other
// columns must be set. If all tied states equal the shown state, their JSON stays nil. The caller
// sets Row.State, and Apply copies its JSON to them before a different state can join. A row that
// no input of the same version will join may stay without JSON.
func DecodeTiedStates(text []byte, row *Row) error {
	var stored []storedTiedState
	if err := json.Unmarshal(text, &stored); err != nil {
		return fmt.Errorf("decode tied states: %w", err)
	}
	if len(stored) == 1 && stored[0].Hash == nil {
		stored[0].Hash, stored[0].ExactHash = row.State.Hash[:], row.State.ExactHash[:]
		stored[0].Deleted, stored[0].Sanitized = row.State.Deleted, row.State.Sanitized
		stored[0].TimeFrom, stored[0].TimeTo = row.TimeFrom, row.TimeTo
	}
	set := make([]TiedState, len(stored))
	for i, s := range stored {
		m, err := fromStored(s)
		if err != nil {
			return fmt.Errorf("decode tied states: state %d: %w", i, err)
		}
		set[i] = m
	}
	row.TiedStates = set
	return nil
}

func fromStored(s storedTiedState) (TiedState, error) {
	m := TiedState{FromRefetch: s.FromRefetch, TimeFrom: s.TimeFrom, TimeTo: s.TimeTo}
	m.State = State{Deleted: s.Deleted, Sanitized: s.Sanitized, JSON: s.State}
	if s.ExactHash == nil {
		s.ExactHash = s.Hash
	}
	if err := decodeHash(&m.State.Hash, s.Hash); err != nil {
		return TiedState{}, err
	}
	if err := decodeHash(&m.State.ExactHash, s.ExactHash); err != nil {
		return TiedState{}, err
	}
	if s.Before != nil {
		m.Before = new(Hash)
		return m, decodeHash(m.Before, *s.Before)
	}
	return m, nil
}

func decodeHash(h *Hash, b []byte) error {
	if copy(h[:], b) != len(h) || len(b) != len(h) {
		return fmt.Errorf("a hash has %d bytes instead of %d", len(b), len(h))
	}
	return nil
}
