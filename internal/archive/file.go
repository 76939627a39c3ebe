package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"

	"github.com/postern-gateway/postern/internal/events"
)

// The names of what an export to FILE has while it is not whole.
const (
	partSuffix  = ".part"
	stateSuffix = ".state"
)

// Errors of an export to a file that say what to do.
var (
	// ErrExists: the file is there; it is not written over.
	ErrExists = errors.New("is there already")
	// ErrInterrupted: an export to this file was ended before its end.
	ErrInterrupted = errors.New("was begun and not ended")
	// ErrDiffers: what is asked for is not what the export was begun with.
	ErrDiffers = errors.New("was begun with other flags")
)

// state is an export that is not whole, as it lies beside the file.
type state struct {
	Version int `json:"postern_export"`
	// Words are the filter as the person wrote it, Filter what they meant when the export was begun.
	Words       map[string]string `json:"words"`
	Filter      events.Filter     `json:"filter"`
	Compression Compression       `json:"compression"`
	place
}

// ToFile writes the chosen events to a file, which gets its name when it is whole: until then it is FILE.part, and FILE.state tells how far it is. Chunks
// are synced one by one, so that an export that was ended goes on where it was, with resume. words are the filter as the person wrote it; to go on
// with others is ErrDiffers.
func ToFile(ctx context.Context, e Exporting, path string, words map[string]string, resume bool) (Exported, error) {
	f := &file{path: path}
	defer f.close()
	found, err := f.open(resume)
	if err != nil {
		return Exported{}, err
	}
	switch s := &f.state; {
	case found && f.whole:
		return s.Exported, f.settle()
	case found && (!maps.Equal(s.Words, words) || s.Compression != e.Compression):
		return Exported{}, fmt.Errorf("the export to %s %w (%s): repeat those, or delete %s and %s", path, ErrDiffers, s.asked(), path+partSuffix, path+stateSuffix)
	case !found:
		at, err := begin(ctx, &e)
		if err != nil {
			return Exported{}, err
		}
		*s = state{Version: Version, Words: words, Filter: e.Filter, Compression: e.Compression, place: at}
	}
	e.Filter = f.state.Filter
	x, err := newExport(ctx, e, f.state.place)
	if err != nil {
		return Exported{}, err
	}
	x.store = f.append
	if err = x.run(ctx); errors.Is(err, ErrShort) {
		err = fmt.Errorf("%w: move away %s, which has what was read, and %s", err, path+partSuffix, path+stateSuffix)
	}
	if err != nil {
		return x.at.Exported, err
	}
	return x.at.Exported, f.end()
}

// asked is what an export was begun with, in words.
func (s *state) asked() string {
	text, err := json.Marshal(s.Words)
	if err != nil || len(s.Words) == 0 {
		return "no filter, compression " + string(s.Compression)
	}
	return fmt.Sprintf("%s, compression %s", text, s.Compression)
}

// file is one that an export is written to.
type file struct {
	path  string
	part  *os.File
	state state
	// whole: only the name of the state is left of the export.
	whole bool
}

// open takes up what is there, or begins. found: the state was read, and the file ends where that says.
func (f *file) open(resume bool) (found bool, err error) {
	stateErr := f.readState()
	found = stateErr == nil
	if stateErr != nil && !errors.Is(stateErr, fs.ErrNotExist) {
		return false, stateErr
	}
	file, err := os.Lstat(f.path)
	exists := err == nil
	part, err := os.Lstat(f.path + partSuffix)
	named := errors.Is(err, fs.ErrNotExist) || err == nil && exists && os.SameFile(file, part)
	switch {
	case exists && found && named && resume: // all was done but to forget the rest
		f.whole = true
		return true, nil
	case exists:
		return false, fmt.Errorf("%s %w: delete it, or name another", f.path, ErrExists)
	case found && !resume:
		return false, fmt.Errorf("the export to %s %w: go on with --resume, or delete %s and %s", f.path, ErrInterrupted, f.path+partSuffix, f.path+stateSuffix)
	}
	return found, f.openPart(found)
}

// openPart opens the file under the name that it has until it is whole, alone, and cuts it to what the state stands for: behind that is a chunk which may
// not be whole.
func (f *file) openPart(found bool) (err error) {
	mode := os.O_WRONLY
	if !found {
		mode |= os.O_CREATE // one without a state has nothing that was finished
	}
	if f.part, err = os.OpenFile(f.path+partSuffix, mode, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(f.part.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process is exporting to %s: %w", f.path, err)
	}
	if found {
		if err := f.readState(); err != nil { // again, now that nobody else writes it
			return err
		}
	}
	info, err := f.part.Stat()
	if err != nil {
		return err
	}
	if info.Size() < f.state.Bytes {
		return fmt.Errorf("%s has %d bytes, fewer than the %d that were finished: it was changed; delete it and %s, and begin again", f.path+partSuffix, info.Size(), f.state.Bytes, f.path+stateSuffix)
	}
	if err := f.part.Truncate(f.state.Bytes); err != nil {
		return err
	}
	_, err = f.part.Seek(f.state.Bytes, 0)
	return err
}

func (f *file) readState() error {
	text, err := os.ReadFile(f.path + stateSuffix)
	if err != nil {
		return err
	}
	read := json.NewDecoder(bytes.NewReader(text))
	read.DisallowUnknownFields() // a state of a later release may mean something else by what is unknown here
	f.state = state{}
	if err := read.Decode(&f.state); err != nil || f.state.Version != Version {
		return fmt.Errorf("%s cannot be read: it is of another release or was changed; delete it and %s, and begin again (%v)", f.path+stateSuffix, f.path+partSuffix, err)
	}
	return nil
}

// append makes a chunk durable, and then that it is there.
func (f *file) append(packed []byte, at place) error {
	if _, err := f.part.Write(packed); err != nil {
		return err
	}
	if err := f.part.Sync(); err != nil {
		return err
	}
	f.state.place = at
	return f.writeState()
}

// writeState replaces the state in one step.
func (f *file) writeState() error {
	text, err := json.Marshal(&f.state)
	if err != nil {
		return err
	}
	next := f.path + stateSuffix + ".new"
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, f.path+stateSuffix)
}

// end gives the file its name; then nothing remembers the export. A second name is refused where there is a file, which renaming would replace.
func (f *file) end() error {
	switch err := os.Link(f.path+partSuffix, f.path); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s %w: it came while the export was under way, which is whole in %s; move one of them away, and the same with --resume ends it", f.path, ErrExists, f.path+partSuffix)
	case err != nil:
		return f.rename()
	}
	return f.settle()
}

// rename is for file systems where a file has one name: what comes between the look and the renaming is not seen there.
func (f *file) rename() error {
	if _, err := os.Lstat(f.path); err == nil {
		return fmt.Errorf("%s %w: move it away, and go on with --resume", f.path, ErrExists)
	}
	if err := os.Rename(f.path+partSuffix, f.path); err != nil {
		return err
	}
	return f.settle()
}

// settle makes the file's name durable and then forgets what led to it, what is gone already too.
func (f *file) settle() error {
	folder := filepath.Dir(f.path)
	if err := syncFolder(folder); err != nil {
		return err
	}
	if err := os.Remove(f.path + partSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.forget()
}

func (f *file) forget() error { return os.Remove(f.path + stateSuffix) }

func (f *file) close() {
	if f.part != nil {
		_ = f.part.Close() // what counts was synced
	}
}

// syncFolder makes the names in a folder durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
