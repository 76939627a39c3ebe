package versioning

import (
	"encoding/json"
	"strconv"

	"github.com/postern-gateway/postern/internal/canonical"
)

// Change is one place at which two rows of an object differ.
type Change struct {
	// Path is "version", "deleted", "ambiguous", "look_after", "settled", "tie_set", "last_event_id", "rule_version", or a place in the state: state.lines[0].amount.
	Path string `json:"path"`
	// Before and After are JSON; null where there is nothing on one side.
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"`
}

// Differ lists the places at which the row differs from one of before, which may be that of an object that is not stored, and both of which were
// read with their states: at most so many of the state, and how many more there are. Errors: a state that is no JSON.
func (o *Object) Differ(before *Object, most int) (changes []Change, more int, err error) {
	add := func(path string, differs bool, was, is []byte) {
		if differs {
			changes = append(changes, Change{Path: path, Before: orNull(was), After: orNull(is)})
		}
	}
	was, is := before.facts(), o.facts()
	for i, f := range is {
		add(f.name, was[i].text != f.text, []byte(was[i].text), []byte(f.text))
	}
	if before.Version == o.Version { // else it is another set in any case
		was, is := members(before), members(o)
		if was == is {
			is += ", other windows"
		}
		add("tie_set", !sameSet(before.Set, o.Set) || before.Overflow != o.Overflow, []byte(strconv.Quote(was)), []byte(strconv.Quote(is)))
	}
	add("rule_version", before.Exists && o.Outdated(), strconv.AppendInt(nil, int64(o.rule), 10), strconv.AppendInt(nil, RuleVersion, 10))
	old, err := parseState(before)
	if err != nil {
		return nil, 0, err
	}
	now, err := parseState(o)
	if err != nil {
		return nil, 0, err
	}
	fixed := len(changes)
	canonical.Differ("state", old, now, func(path string, old, now *canonical.Value) bool {
		if len(changes)-fixed == most {
			more++
			return true
		}
		add(path, true, old.Raw(), now.Raw())
		return true
	})
	return changes, more, nil
}

// fact is a value of a row as JSON; "" for none.
type fact struct{ name, text string }

func (o *Object) facts() []fact {
	version, _ := o.Version.MarshalJSON() // integers and a bool always marshal
	all := []fact{{"version", string(version)}, {"deleted", strconv.FormatBool(o.State.Deleted)}, {"ambiguous", strconv.FormatBool(o.Ambiguous)},
		{"look_after", strconv.FormatInt(o.LookAfter, 10)},
		{"settled", strconv.FormatInt(o.Settled, 10)}, {"last_event_id", strconv.Quote(strconv.FormatInt(o.LastEvent, 10))}}
	if o.LookAfter == 0 {
		all[3].text = ""
	}
	if o.Settled == 0 {
		all[4].text = ""
	}
	if o.LastEvent == 0 {
		all[5].text = ""
	}
	return all
}

// members is how many contents of the row's version there are.
func members(o *Object) string {
	if o.Overflow {
		return "too many contents"
	}
	return strconv.Itoa(len(o.Set)) + " contents"
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
