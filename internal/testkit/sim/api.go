package sim

import (
	"encoding/json"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Looker = Provider{}

// answer is what the simulated API says of an object: what the rule must know of the type, and the object.
type answer struct {
	Unit     int64          `json:"unit"`
	Own      bool           `json:"own"`
	Integer  bool           `json:"integer"`
	Still    bool           `json:"still"`
	Stub     bool           `json:"stub"`
	Volatile []string       `json:"volatile"`
	Version  int64          `json:"version"`
	Object   map[string]any `json:"object"`
}

// Answer is the object's look as the log keeps it, at the same moment as Look's.
func (h *History) Answer(id string, l Look) *provider.Look {
	m, there := h.at(id, l.Began-l.Lag+l.Answered)
	out := &provider.Look{Date: time.UnixMicro(floor(l.Began+l.Elapsed, second)), Elapsed: time.Duration(l.Elapsed) * time.Microsecond,
		Lag: time.Duration(l.Lag) * time.Microsecond, Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: id}}
	gone := !there || m.content == nil
	stub := gone && there && h.Final
	out.Body = text(answer{Unit: h.Unit, Own: h.Own && !gone, Integer: h.Integer, Still: h.Still, Stub: stub, Volatile: volatile, Version: m.own, Object: m.content})
	return out
}

// Lag is none: a Look says how much there was.
func (Provider) Lag() time.Duration { return 0 }

// Snapshot reads an Answer.
func (Provider) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	var a answer
	if err := json.Unmarshal(s.Body, &a); err != nil {
		return provider.Observation{}, err
	}
	v, err := canonical.Parse(s.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	o := provider.Observation{ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: a.Unit, Rank: 1, Volatile: a.Volatile, Own: a.Own, HasAt: a.Own, At: a.Version, Still: a.Still}
	if o.State = v.Get("object"); o.State.Kind() != canonical.Object {
		o.State, o.Deleted, o.Final = nil, true, a.Stub
		if a.Integer {
			o.Partial = "not found, and a counter has no place for that"
		}
	}
	return o, nil
}
