package versioning

import (
	"encoding/json"
	"strconv"

	"github.com/postern-gateway/postern/internal/canonical"
)

// Difference is one value in which two rows of an object differ.
type Difference struct {
	// Path is "version", "deleted", "ambiguous", "refetch_after", "overwritten_at", "tied_states",
	// "last_event_id", "rule_version", or a path in the state, such as state.lines[0].amount.
	Path string `json:"path"`
	// Before and After are JSON. A side without a value is null.
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"`
}

// ListDifferences compares the row with an older one, before. Both must have been read with their
// states; before may be the row of an object that is not stored. It returns at most limit
// differences of the states, and how many more there are. It fails when a state is not JSON.
func (o *Object) ListDifferences(before *Object, limit int) (changes []Difference, more int, err error) {
	add := func(path string, differs bool, was, is []byte) {
		if differs {
			changes = append(changes, Difference{Path: path, Before: orNull(was), After: orNull(is)})
		}
	}
	was, is := before.fields(), o.fields()
	for i, f := range is {
		add(f.name, was[i].text != f.text, []byte(was[i].text), []byte(f.text))
	}
	if before.Version == o.Version { // tied states of different versions cannot be compared
		was, is := describeTied(before), describeTied(o)
		if was == is {
			is += ", other time ranges"
		}
		add("tied_states", !equalTied(before.TiedStates, o.TiedStates) || before.Overflow != o.Overflow,
			[]byte(strconv.Quote(was)), []byte(strconv.Quote(is)))
	}
	add("rule_version", before.Exists && o.Outdated(), strconv.AppendInt(nil, int64(o.ruleVersion), 10),
		strconv.AppendInt(nil, RuleVersion, 10))
	old, err := parseState(before)
	if err != nil {
		return nil, 0, err
	}
	now, err := parseState(o)
	if err != nil {
		return nil, 0, err
	}
	fixed := len(changes)
	canonical.VisitDifferences("state", old, now, func(path string, old, now *canonical.Value) bool {
		if len(changes)-fixed == limit {
			more++
			return true
		}
		add(path, true, old.Raw(), now.Raw())
		return true
	})
	return changes, more, nil
}

// rowField is one value of a row as JSON; the text is empty when the row has no such value.
type rowField struct{ name, text string }

func (o *Object) fields() []rowField {
	version, _ := o.Version.MarshalJSON() // a Version always marshals
	all := []rowField{{"version", string(version)}, {"deleted", strconv.FormatBool(o.State.Deleted)},
		{"ambiguous", strconv.FormatBool(o.Ambiguous)},
		{"refetch_after", strconv.FormatInt(o.RefetchAfter, 10)},
		{"overwritten_at", strconv.FormatInt(o.OverwrittenAt, 10)},
		{"last_event_id", strconv.Quote(strconv.FormatInt(o.LastEventID, 10))}}
	if o.RefetchAfter == 0 {
		all[3].text = ""
	}
	if o.OverwrittenAt == 0 {
		all[4].text = ""
	}
	if o.LastEventID == 0 {
		all[5].text = ""
	}
	return all
}

// describeTied describes the number of tied states.
func describeTied(o *Object) string {
	if o.Overflow {
		return "too many states"
	}
	return strconv.Itoa(len(o.TiedStates)) + " states"
}

func parseState(o *Object) (*canonical.Value, error) {
	if o.State.JSON == nil {
		return canonical.Parse([]byte("null"))
	}
	return canonical.Parse(o.State.JSON)
}

func orNull(text []byte) json.RawMessage {
	if len(text) == 0 {
		return json.RawMessage("null")
	}
	return text
}
