package provider

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// File is a list that the API writes into a file when it is asked to, an object a line, in the place of pages.
type File struct {
	// Name is the file's, without '@': whoever goes on with the list asks for it by that. "" while the API has not begun with it.
	Name string
	// Ready: it is written. Else Wait is how long to wait before it is asked for again, and Why says in words why.
	Ready bool
	Wait  time.Duration
	Why   string
	// URL is where it lies, on any host: the credential is not sent there. It may be good for a while only, and for whoever has it, so it is kept nowhere. "" where the list has no object.
	URL string
	// Size is how many bytes the file has; 0 where the API does not say.
	Size int64
}

// FileLister is an ObjectLister that lists objects of some types by files.
type FileLister interface {
	ObjectLister
	// FileTypes are the types that API.Bulk may name.
	FileTypes(api *API) []string
	// ObjectFile reads the answer to ListObjects with that cursor where it tells of a file; false: it is a page. A file that is lost or came to nothing is an answer that is
	// Expired. The cursors of a file are those that its Cursor makes.
	ObjectFile(objectType, cursor string, header http.Header, body []byte) (f File, ok bool, err error)
	// ObjectLine is what a line of the file tells; false where that is no object of the type. Lines tell names and versions: a Body is not taken, since nobody knows of when it is.
	ObjectLine(objectType string, line []byte) (one Listed, ok bool, err error)
}

const fileMark = "file "

// Cursor is the place in the list behind so many bytes of the file.
func (f File) Cursor(offset int64) string {
	return fileMark + f.Name + "@" + strconv.FormatInt(offset, 10)
}

// FileCursor reads what Cursor has made; false where the cursor is of a page.
func FileCursor(cursor string) (name string, offset int64, ok bool) {
	rest, ok := strings.CutPrefix(cursor, fileMark)
	name, number, cut := strings.Cut(rest, "@")
	offset, err := strconv.ParseInt(number, 10, 64)
	if !ok || !cut || err != nil || offset < 0 {
		return "", 0, false
	}
	return name, offset, true
}
