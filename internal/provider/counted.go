package provider

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// turn is a place in a list whose pages are counted, by page number or by offset. There a delete moves the later objects
// to the page before, out of sight where that was read already. So after each page the page before it is read again, and in
// the end the last page. If it has the same objects as before, nothing moved between the two pages, and the list goes on.
// Else both are read again.
type turn struct {
	// At is the cursor of the page to read. Before is that of the page before it, whose objects had the mark Sum.
	At     string `json:"at"`
	Before string `json:"before,omitempty"`
	Sum    string `json:"sum"`
	// Check: the page to read is Before, and At was read, with the mark AtSum. The list goes on at Next, or ends if that
	// is "".
	Check bool   `json:"check,omitempty"`
	AtSum string `json:"at_sum,omitempty"`
	Next  string `json:"next,omitempty"`
	// Last: the page to read is the last one, which is Before here, and At is the page before it.
	Last bool `json:"last,omitempty"`
	// Tries is how often the two pages were read because something moved.
	Tries int `json:"tries,omitempty"`
}

const (
	// turnPrefix begins the cursors that are turns. Those of APIs are kept as they are.
	turnPrefix = "postern counted "
	// maxTurns is how often two pages are read until nothing moves between them.
	maxTurns = 10
)

// The parts of a mark, in bytes: the digest of all ids of a page in their order, and of each of up to sampledIDs of them.
const (
	digestSize  = 12
	idSize      = 4
	sampledIDs  = 16
	maxMarkSize = digestSize + sampledIDs*idSize
)

// markOf returns the mark of a page with objects of these ids.
func markOf(ids []string) string {
	digest := sha256.Sum256([]byte(strings.Join(ids, "\x00")))
	mark := append(make([]byte, 0, maxMarkSize), digest[:digestSize]...)
	for i := range min(len(ids), sampledIDs) {
		id := sha256.Sum256([]byte(ids[i*len(ids)/min(len(ids), sampledIDs)]))
		mark = append(mark, id[:idSize]...)
	}
	return base64.RawStdEncoding.EncodeToString(mark)
}

// overlaps tells whether one of the objects that a mark samples is among those of these ids, or it samples none. Else so
// many objects moved that others may have jumped over the page.
func overlaps(mark string, ids []string) bool {
	b, err := base64.RawStdEncoding.DecodeString(mark)
	if err != nil || len(b) <= digestSize {
		return true
	}
	sampled := slices.Collect(slices.Chunk(b[digestSize:], idSize))
	return slices.ContainsFunc(ids, func(id string) bool {
		digest := sha256.Sum256([]byte(id))
		return slices.ContainsFunc(sampled, func(s []byte) bool { return string(s) == string(digest[:idSize]) })
	})
}

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
// Errors: the list never stood still, or more than a page moved at once. Only an object that moves over the end of a page
// three times within six reads can be out of sight in all of them.
func NextCounted(cursor, next string, ids []string, isCount func(cursor string) bool) (string, error) {
	sum := markOf(ids)
	t, counted := readTurn(cursor)
	switch {
	case counted && !t.Check:
		t.Check, t.AtSum, t.Next = true, sum, next
		return t.String(), nil
	case counted && t.Sum != sum:
		return t.again(sum, next, ids)
	case counted && t.Next != "" && isCount(t.Next):
		return turn{At: t.Next, Before: t.At, Sum: t.AtSum}.String(), nil
	case counted && !t.Last:
		return turn{Check: true, Last: true, Before: t.At, Sum: t.AtSum, At: t.Before, AtSum: sum, Next: t.Next, Tries: t.Tries}.String(), nil
	case counted:
		return t.Next, nil
	case next != "" && isCount(next):
		return turn{At: next, Before: cursor, Sum: sum}.String(), nil
	}
	return next, nil
}

// again returns the cursor after a page whose objects moved since it was read before. Its answer named the page next.
func (t turn) again(sum, next string, ids []string) (string, error) {
	switch {
	case t.Tries+1 == maxTurns:
		return "", errors.New("objects move between its pages all the time, so it cannot be read whole; try again when fewer change")
	case t.Last: // it may be short, so a few deletes can empty it; the page before it is compared next
		return turn{Check: true, At: t.Before, AtSum: sum, Next: next, Before: t.At, Sum: t.AtSum, Tries: t.Tries + 1}.String(), nil
	case !overlaps(t.Sum, ids):
		return "", errors.New("more objects than a page holds moved at once, so it cannot be read whole; try again when fewer change")
	}
	return turn{At: t.At, Before: t.Before, Sum: sum, Tries: t.Tries + 1}.String(), nil
}
