package provider

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// File is a list that the API writes to a file on request, one object per line, instead of pages.
type File struct {
	// Name identifies the file and contains no '@'. The next call of the list uses it. It is ""
	// until the API has started to write.
	Name string
	// Ready means that the file is complete. Otherwise Wait is how long to wait before the next
	// call, and Reason says why.
	Ready  bool
	Wait   time.Duration
	Reason string
	// URL is where the file can be read, on any host. The credential is not sent there. The URL may
	// expire and may give access to anyone, so it is never stored. It is "" if the list has no
	// objects.
	URL string
	// Size is the size of the file in bytes; 0 if the API does not say.
	Size int64
}

// FileLister is an ObjectLister that lists objects of some types with files.
type FileLister interface {
	ObjectLister
	// FileTypes returns the types that API.Bulk may contain.
	FileTypes(api *API) []string
	// ObjectFile reads the response to ListObjects with that cursor, if it is about a file; ok is
	// false for a page. The response for a file that was lost or that failed is Expired. The
	// cursors of a file come from File.Cursor.
	ObjectFile(objectType, cursor string, header http.Header, body []byte) (f File, ok bool, err error)
	// ObjectLine reads a line of the file; ok is false if it is no object of the type. Lines give
	// only ids and versions: a Body is ignored, because the time of its state is unknown.
	ObjectLine(objectType string, line []byte) (one ListedObject, ok bool, err error)
}

const fileCursorPrefix = "file "

// Cursor returns the position in the list after this many bytes of the file.
func (f File) Cursor(offset int64) string {
	return fileCursorPrefix + f.Name + "@" + strconv.FormatInt(offset, 10)
}

// FileCursor parses the output of Cursor. It returns false for the cursor of a page.
func FileCursor(cursor string) (name string, offset int64, ok bool) {
	rest, ok := strings.CutPrefix(cursor, fileCursorPrefix)
	name, number, cut := strings.Cut(rest, "@")
	offset, err := strconv.ParseInt(number, 10, 64)
	if !ok || !cut || err != nil || offset < 0 {
		return "", 0, false
	}
	return name, offset, true
}
