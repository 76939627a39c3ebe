package provider

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// countedCursor is a position in a list whose pages are counted, by page number or by offset. A
// delete moves the later objects of such a list to the page before. If that page was already read,
// those objects would be skipped. So after each page the page before it is read again, and at the
// end the last page. If it has the same objects as before, nothing moved between the two pages, and
// the list continues. Otherwise both pages are read again.
type countedCursor struct {
	// Page is the cursor of the page to read. Previous is the cursor of the page before it, and
	// PreviousChecksum the checksum of that page when it was last read.
	Page             string `json:"at"`
	Previous         string `json:"before,omitempty"`
	PreviousChecksum string `json:"sum"`
	// CheckPrevious means that the page to read is Previous, and that Page was read and had the
	// checksum PageChecksum. The list continues at Next, or ends if that is "".
	CheckPrevious bool   `json:"check,omitempty"`
	PageChecksum  string `json:"at_sum,omitempty"`
	Next          string `json:"next,omitempty"`
	// CheckLast means that the page to read is the last one. Then Previous is the last page, and
	// Page is the page before it.
	CheckLast bool `json:"last,omitempty"`
	// Tries is how often the two pages were read because something moved.
	Tries int `json:"tries,omitempty"`
}

const (
	// countedPrefix begins the text of a countedCursor. Cursors of the API do not begin with it.
	countedPrefix = "postern counted "
	// maxTries is how often two pages are read until nothing moves between them.
	maxTries = 10
)

// The parts of a page's checksum, in bytes: the digest of all its ids in order, and the digests of
// up to sampledIDs of them.
const (
	digestSize      = 12
	idSize          = 4
	sampledIDs      = 16
	maxChecksumSize = digestSize + sampledIDs*idSize
)

// checksumOf returns the checksum of a page with objects of these ids.
func checksumOf(ids []string) string {
	digest := sha256.Sum256([]byte(strings.Join(ids, "\x00")))
	sum := append(make([]byte, 0, maxChecksumSize), digest[:digestSize]...)
	for i := range min(len(ids), sampledIDs) {
		id := sha256.Sum256([]byte(ids[i*len(ids)/min(len(ids), sampledIDs)]))
		sum = append(sum, id[:idSize]...)
	}
	return base64.RawStdEncoding.EncodeToString(sum)
}

// overlaps reports whether one of the sampled objects of a checksum is among these ids, or the
// checksum has no samples. If it returns false, so many objects moved that some may have moved past
// the page.
func overlaps(checksum string, ids []string) bool {
	b, err := base64.RawStdEncoding.DecodeString(checksum)
	if err != nil || len(b) <= digestSize {
		return true
	}
	sampled := slices.Collect(slices.Chunk(b[digestSize:], idSize))
	return slices.ContainsFunc(ids, func(id string) bool {
		digest := sha256.Sum256([]byte(id))
		return slices.ContainsFunc(sampled, func(s []byte) bool { return string(s) == string(digest[:idSize]) })
	})
}

func decodeCountedCursor(cursor string) (t countedCursor, counted bool) {
	text, counted := strings.CutPrefix(cursor, countedPrefix)
	if counted && json.Unmarshal([]byte(text), &t) == nil {
		return t, true
	}
	return countedCursor{Page: cursor}, false
}

func (t countedCursor) String() string {
	b, _ := json.Marshal(t) // texts, numbers and booleans always marshal
	return countedPrefix + string(b)
}

// CountedPage returns the API's cursor of the page that a cursor of NextCounted stands for, and
// whether that page is counted. It returns any other cursor unchanged.
func CountedPage(cursor string) (page string, counted bool) {
	t, counted := decodeCountedCursor(cursor)
	if t.CheckPrevious {
		return t.Previous, counted
	}
	return t.Page, counted
}

// ReadsAgain reports whether a cursor stands for a page that was read before.
func ReadsAgain(cursor string) bool {
	t, counted := decodeCountedCursor(cursor)
	return counted && (t.CheckPrevious || t.Tries > 0)
}

// NextCounted returns the cursor to read after a page with objects of these ids, whose response
// named the page next; "" ends the list. isCount reports whether the API's cursor of a page counts
// pages or objects; other cursors are returned unchanged. NextCounted fails if objects moved during
// each of maxTries reads, or if more objects than a page holds moved at once. It misses an object
// only if that object moves over the end of a page three times within six reads.
func NextCounted(cursor, next string, ids []string, isCount func(cursor string) bool) (string, error) {
	checksum := checksumOf(ids)
	t, counted := decodeCountedCursor(cursor)
	switch {
	case counted && !t.CheckPrevious:
		t.CheckPrevious, t.PageChecksum, t.Next = true, checksum, next
		return t.String(), nil
	case counted && t.PreviousChecksum != checksum:
		return t.retry(checksum, next, ids)
	case counted && t.Next != "" && isCount(t.Next):
		return countedCursor{Page: t.Next, Previous: t.Page, PreviousChecksum: t.PageChecksum}.String(), nil
	case counted && !t.CheckLast:
		return countedCursor{CheckPrevious: true, CheckLast: true, Previous: t.Page, PreviousChecksum: t.PageChecksum,
			Page: t.Previous, PageChecksum: checksum, Next: t.Next, Tries: t.Tries}.String(), nil
	case counted:
		return t.Next, nil
	case next != "" && isCount(next):
		return countedCursor{Page: next, Previous: cursor, PreviousChecksum: checksum}.String(), nil
	}
	return next, nil
}

// retry returns the cursor after a page whose objects moved since it was read before. Its response
// named the page next.
func (t countedCursor) retry(checksum, next string, ids []string) (string, error) {
	switch {
	case t.Tries+1 == maxTries:
		return "", errors.New("objects move between its pages all the time, so the list cannot be read completely; " +
			"try again when fewer change")
	case t.CheckLast: // the last page may be short, so a few deletes can empty it; the page before it is compared next
		return countedCursor{CheckPrevious: true, Page: t.Previous, PageChecksum: checksum, Next: next,
			Previous: t.Page, PreviousChecksum: t.PageChecksum, Tries: t.Tries + 1}.String(), nil
	case !overlaps(t.PreviousChecksum, ids):
		return "", errors.New("more objects than a page holds moved at once, so the list cannot be read completely; " +
			"try again when fewer change")
	}
	again := countedCursor{Page: t.Page, Previous: t.Previous, PreviousChecksum: checksum, Tries: t.Tries + 1}
	return again.String(), nil
}
