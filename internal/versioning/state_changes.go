package versioning

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/canonical"
)

// Limits of a comparison of two states. maxStringBytes is the length above which a string is
// shortened, and stringContext how much of it is kept before and after the part that differs.
const (
	maxStateChanges     = 2000
	maxStateBytes       = 2 << 20
	maxStateChangeBytes = 4 << 20
	maxStringBytes      = 1 << 10
	stringContext       = 128
)

// StateChange is one value in which two states of an object differ.
type StateChange struct {
	Difference
	// Shortened means that the value is a long string, of which before and after contain the part
	// that differs and its surroundings. An ellipsis (…) stands for each part that is left out.
	Shortened bool `json:"shortened,omitempty"`
}

// StateTooLargeError is the error of a comparison with a state that is too large for it.
type StateTooLargeError struct{ Bytes int }

func (e *StateTooLargeError) Error() string {
	return fmt.Sprintf("a state of %d bytes is too large to compare; the limit is %d", e.Bytes, maxStateBytes)
}

// ListStateChanges returns the values in which a state differs from an older one. A nil state is
// one that does not exist. Truncated means that the list ended at a limit. Errors:
// *StateTooLargeError.
func ListStateChanges(before, after *State) (changes []StateChange, truncated bool, err error) {
	old, now, err := parseStates(before, after)
	if err != nil {
		return nil, false, err
	}
	if before != nil && before.Deleted != after.Deleted {
		changes = append(changes, StateChange{Difference: Difference{Path: "deleted",
			Before: fmt.Append(nil, before.Deleted), After: fmt.Append(nil, after.Deleted)}})
	}
	size := 0
	canonical.VisitDifferences("state", old, now, func(path string, old, now *canonical.Value) bool {
		c := makeStateChange(path, old, now)
		size += len(c.Path) + len(c.Before) + len(c.After)
		if truncated = len(changes) == maxStateChanges || size > maxStateChangeBytes; !truncated {
			changes = append(changes, c)
		}
		return !truncated
	})
	return changes, truncated, nil
}

// ChangeSize is how many values of a state differ from those of an older state.
type ChangeSize struct {
	Added   int `json:"added"`
	Removed int `json:"removed"`
	Changed int `json:"changed"`
	// Truncated means that the count ended at a limit.
	Truncated bool `json:"truncated,omitempty"`
}

// CountStateChanges counts the values that ListStateChanges lists, except deleted. Errors:
// *StateTooLargeError.
func CountStateChanges(before, after *State) (n ChangeSize, err error) {
	old, now, err := parseStates(before, after)
	if err != nil {
		return n, err
	}
	canonical.VisitDifferingValues(old, now, func(old, now *canonical.Value) bool {
		switch n.Truncated = n.Added+n.Removed+n.Changed == maxStateChanges; {
		case n.Truncated:
			return false
		case old.Kind() == canonical.Missing:
			n.Added++
		case now.Kind() == canonical.Missing:
			n.Removed++
		default:
			n.Changed++
		}
		return true
	})
	return n, nil
}

func parseStates(before, after *State) (old, now *canonical.Value, err error) {
	for _, s := range []struct {
		state *State
		value **canonical.Value
	}{{before, &old}, {after, &now}} {
		switch {
		case s.state == nil:
			continue
		case len(s.state.JSON) > maxStateBytes:
			return nil, nil, &StateTooLargeError{Bytes: len(s.state.JSON)}
		}
		if *s.value, err = canonical.Parse(orNull(s.state.JSON)); err != nil {
			return nil, nil, fmt.Errorf("compare states: %w", err)
		}
	}
	return old, now, nil
}

func makeStateChange(path string, old, now *canonical.Value) StateChange {
	c := StateChange{Difference: Difference{Path: path, Before: orNull(old.Raw()), After: orNull(now.Raw())}}
	if len(c.Before) <= maxStringBytes && len(c.After) <= maxStringBytes {
		return c
	}
	was, wasString := old.Text()
	is, isString := now.Text()
	prefix, suffix := 0, 0
	if wasString && isString {
		prefix, suffix = commonEnds(was, is)
	}
	if wasString && len(c.Before) > maxStringBytes {
		c.Before, c.Shortened = shorten(was, prefix, suffix), true
	}
	if isString && len(c.After) > maxStringBytes {
		c.After, c.Shortened = shorten(is, prefix, suffix), true
	}
	return c
}

// commonEnds returns the lengths of the beginning and the end that two texts have in common.
func commonEnds(a, b string) (prefix, suffix int) {
	n := min(len(a), len(b))
	for prefix < n && a[prefix] == b[prefix] {
		prefix++
	}
	for suffix < n-prefix && a[len(a)-1-suffix] == b[len(b)-1-suffix] {
		suffix++
	}
	return prefix, suffix
}

const ellipsis = "…"

// shorten returns the part of a text between a prefix and a suffix, with its surroundings, as a
// JSON string. If the part is long itself, only its beginning and end are kept.
func shorten(text string, prefix, suffix int) json.RawMessage {
	from, to := runeStart(text, max(0, prefix-stringContext)), runeStart(text, min(len(text),
		len(text)-suffix+stringContext))
	var b strings.Builder
	if from > 0 {
		b.WriteString(ellipsis)
	}
	if part := text[from:to]; len(part) <= maxStringBytes {
		b.WriteString(part)
	} else {
		b.WriteString(part[:runeStart(part, maxStringBytes/2)] + ellipsis)
		b.WriteString(part[runeStart(part, len(part)-maxStringBytes/2):])
	}
	if to < len(text) {
		b.WriteString(ellipsis)
	}
	return canonical.AppendText(nil, b.String())
}

// runeStart returns the start of the rune that contains byte i of a text, or the length of the
// text.
func runeStart(text string, i int) int {
	for i > 0 && i < len(text) && !utf8.RuneStart(text[i]) {
		i--
	}
	return i
}
