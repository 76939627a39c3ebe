package processor

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// envelope is one message of the feed of changes, schema 1. It is a contract that consumers program
// against.
type envelope struct {
	Schema     int                `json:"schema"`
	EventID    string             `json:"event_id"`
	Source     string             `json:"source"`
	Account    string             `json:"account"`
	ObjectType string             `json:"object_type"`
	ObjectID   string             `json:"object_id"`
	Version    versioning.Version `json:"version"`
	Revision   int64              `json:"revision"`
	Deleted    bool               `json:"deleted"`
	Ambiguous  bool               `json:"ambiguous"`
	// State is the last member if it is not null: encode appends it.
	State json.RawMessage `json:"state"`
	// StateOmitted says that the state is too large for a message. Consumers read it from the
	// mirror.
	StateOmitted bool `json:"state_omitted,omitempty"`
	// Redacted says that the state was permanently cleared.
	Redacted bool `json:"redacted,omitempty"`
}

// maxEnvelope is the largest envelope that contains its state, if the server's max_payload allows
// it.
const maxEnvelope = stream.MaxBody

// objectChange is the announcement of one object. All fields come from one read or one write of its
// row.
type objectChange struct {
	key                versioning.Key
	version            versioning.Version
	revision, event    int64
	deleted, ambiguous bool
	state              json.RawMessage
	omitted, redacted  bool
}

// envelopeOf returns the message that announces an object.
func (p *Processor) envelopeOf(c objectChange) envelope {
	source, _ := p.CachedSource(c.key.Source)
	return envelope{Schema: 1, EventID: strconv.FormatInt(c.event, 10), Source: source,
		Account: c.key.Account, ObjectType: c.key.Type, ObjectID: c.key.ID, Version: c.version, Revision: c.revision,
		Deleted: c.deleted, Ambiguous: c.ambiguous, State: c.state, StateOmitted: c.omitted,
		Redacted: c.redacted && c.state == nil}
}

func (p *Processor) encodeChange(batch int64, c objectChange) (stream.Change, error) {
	e := p.envelopeOf(c)
	body, err := e.encode()
	if err == nil && len(body) > min(maxEnvelope, p.Conn.MaxMessageBody()) {
		e.State, e.StateOmitted = nil, true
		body, err = e.encode()
	}
	return stream.Change{Source: e.Source, ObjectType: e.ObjectType, Batch: batch, Event: c.event, Envelope: body}, err
}

// encode appends the stored state in compact form. It does not pass the state to encoding/json:
// escaping for HTML could multiply its length, and reading the state again took a sixth of the
// processor's time.
func (e *envelope) encode() ([]byte, error) {
	head := *e
	head.State = nil
	var b bytes.Buffer
	b.Grow(envelopeHead + len(e.State))
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(head); err != nil || e.State == nil {
		return bytes.TrimRight(b.Bytes(), "\n"), err
	}
	const noState = "null}\n" // the end of head: StateOmitted and Redacted are not set with a state
	return append(canonical.AppendCompact(b.Bytes()[:b.Len()-len(noState)], e.State), '}'), nil
}

// envelopeHead is the usual maximum length of an envelope without its state.
const envelopeHead = 512
