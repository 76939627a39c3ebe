package provider

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// turn is a place in a list whose pages are counted, by page number or by offset. There a delete moves the later objects
// to the page before, out of sight where that was read already. So after each page the page before it is read again. If it
// has the same objects as before, nothing moved between the two pages, and the list goes on. Else both are read again.
type turn struct {
	// At is the cursor of the page to read. Before is that of the page before it, whose objects had the digest Sum.
	At     string `json:"at"`
	Before string `json:"before,omitempty"`
	Sum    string `json:"sum"`
	// Check: the page to read is Before, and At was read, with the digest AtSum. The list goes on at Next, or ends if that
	// is "".
	Check bool   `json:"check,omitempty"`
	AtSum string `json:"at_sum,omitempty"`
	Next  string `json:"next,omitempty"`
	// Tries is how often the two pages were read because something moved.
	Tries int `json:"tries,omitempty"`
}

const (
	// turnPrefix begins the cursors that are turns. Those of APIs are kept as they are.
	turnPrefix = "postern counted "
	// maxTurns is how often two pages are read until nothing moves between them.
	maxTurns = 10
)

func readTurn(cursor string) (t turn, counted bool) {
	text, counted := strings.CutPrefix(cursor, turnPrefix)
	if counted && json.Unmarshal([]byte(text), &t) == nil {
		return t, true
	}
	return turn{At: cursor}, false
}

func (t turn) String() string {
	b, _ := json.Marshal(t) // texts and a number can always be written
	return turnPrefix + string(b)
}

// CountedPage returns the API's cursor of the page that a cursor of NextCounted stands for, and whether that page is
// counted. Any other cursor stands for itself.
func CountedPage(cursor string) (page string, counted bool) {
	t, counted := readTurn(cursor)
	if t.Check {
		return t.Before, counted
	}
	return t.At, counted
}

// ReadsAgain tells whether a cursor stands for a page that was read before.
func ReadsAgain(cursor string) bool {
	t, counted := readTurn(cursor)
	return counted && (t.Check || t.Tries > 0)
}

// NextCounted returns the cursor to read after a page with objects of these ids, whose answer named the page next; "" ends
// the list. isCount tells whether the API's cursor of a page counts pages or objects; others are returned as they are.
// Fewer deletes between two reads than a page has objects move nothing out of sight. Errors: the list never stood still.
func NextCounted(cursor, next string, ids []string, isCount func(cursor string) bool) (string, error) {
	digest := sha256.Sum256([]byte(strings.Join(ids, "\x00")))
	sum := base64.RawStdEncoding.EncodeToString(digest[:12])
	t, counted := readTurn(cursor)
	switch {
	case counted && !t.Check:
		t.Check, t.AtSum, t.Next = true, sum, next
		return t.String(), nil
	case counted && t.Sum != sum && t.Tries+1 == maxTurns:
		return "", errors.New("objects move between its pages all the time, so it cannot be read whole; try again when fewer are deleted")
	case counted && t.Sum != sum:
		return turn{At: t.At, Before: t.Before, Sum: sum, Tries: t.Tries + 1}.String(), nil
	case counted && t.Next != "" && isCount(t.Next):
		return turn{At: t.Next, Before: t.At, Sum: t.AtSum}.String(), nil
	case counted:
		return t.Next, nil
	case next != "" && isCount(next):
		return turn{At: next, Before: cursor, Sum: sum}.String(), nil
	}
	return next, nil
}
