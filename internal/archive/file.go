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

// Suffixes of the files of an unfinished export to FILE.
const (
	partSuffix  = ".part"
	stateSuffix = ".state"
)

// Errors of an export to a file that the operator can resolve.
var (
	// ErrExists: the file exists and is not overwritten.
	ErrExists = errors.New("already exists")
	// ErrUnfinished: an earlier export to this file did not finish.
	ErrUnfinished = errors.New("is not finished")
	// ErrOtherParams: the parameters differ from those of the unfinished export.
	ErrOtherParams = errors.New("was started with other parameters")
)

// state is the state of an unfinished export, stored next to the file.
type state struct {
	Version int `json:"postern_export"`
	// Input is the filter as the operator wrote it. Filter is its meaning when the export
	// started.
	Input       map[string]string `json:"input"`
	Filter      events.Filter     `json:"filter"`
	Compression Compression       `json:"compression"`
	exportPosition
}

// ExportToFile writes the selected events to a file. The file gets its name when it is complete.
// Until then it is FILE.part, and FILE.state has the position. Each chunk is synced, so that an
// interrupted export continues with resume. requestText is the filter as the operator wrote it; to
// continue with another one is ErrOtherParams.
func ExportToFile(ctx context.Context, e ExportParams, path string, requestText map[string]string,
	resume bool) (ExportResult, error) {
	f := &file{path: path}
	defer f.close()
	found, err := f.open(resume)
	if err != nil {
		return ExportResult{}, err
	}
	switch s := &f.state; {
	case found && f.complete:
		return s.ExportResult, f.cleanUp()
	case found && (!maps.Equal(s.Input, requestText) || s.Compression != e.Compression):
		return ExportResult{}, fmt.Errorf("the export to %s %w (%s): repeat those, or delete %s and %s", path,
			ErrOtherParams, s.describeRequest(), path+partSuffix, path+stateSuffix)
	case !found:
		at, err := startPosition(ctx, &e)
		if err != nil {
			return ExportResult{}, err
		}
		*s = state{Version: Version, Input: requestText, Filter: e.Filter, Compression: e.Compression,
			exportPosition: at}
	}
	e.Filter = f.state.Filter
	x, err := newExport(ctx, e, f.state.exportPosition)
	if err != nil {
		return ExportResult{}, err
	}
	x.storeChunk = f.append
	if err = x.run(ctx); errors.Is(err, ErrIncomplete) {
		err = fmt.Errorf("%w: move away %s, which has the events that were read, and %s", err, path+partSuffix,
			path+stateSuffix)
	}
	if err != nil {
		return x.stored.ExportResult, err
	}
	return x.stored.ExportResult, f.publish()
}

// describeRequest describes the parameters with which an export was started.
func (s *state) describeRequest() string {
	text, err := json.Marshal(s.Input)
	if err != nil || len(s.Input) == 0 {
		return "no filter, compression " + string(s.Compression)
	}
	return fmt.Sprintf("%s, compression %s", text, s.Compression)
}

// file is the target file of an export.
type file struct {
	path  string
	part  *os.File
	state state
	// complete: the export is complete, and only its state file remains.
	complete bool
}

// open continues an unfinished export or starts a new one. found: the state was read, and the file
// is truncated to its position.
func (f *file) open(resume bool) (found bool, err error) {
	stateErr := f.readState()
	found = stateErr == nil
	if stateErr != nil && !errors.Is(stateErr, fs.ErrNotExist) {
		return false, stateErr
	}
	file, err := os.Lstat(f.path)
	exists := err == nil
	part, err := os.Lstat(f.path + partSuffix)
	canReuse := errors.Is(err, fs.ErrNotExist) || err == nil && exists && os.SameFile(file, part)
	switch {
	case exists && found && canReuse && resume: // the export is complete except for its cleanup
		f.complete = true
		return true, nil
	case exists:
		return false, fmt.Errorf("%s %w: delete it, or use another name", f.path, ErrExists)
	case found && !resume:
		return false, fmt.Errorf("the export to %s %w: continue with --resume, or delete %s and %s", f.path,
			ErrUnfinished, f.path+partSuffix, f.path+stateSuffix)
	}
	return found, f.openPart(found)
}

// openPart opens and locks the unfinished file, and truncates it to the state's position. A chunk
// after that position may be incomplete.
func (f *file) openPart(found bool) (err error) {
	mode := os.O_WRONLY
	if !found {
		mode |= os.O_CREATE // without a state, nothing in it is finished
	}
	if f.part, err = os.OpenFile(f.path+partSuffix, mode, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(f.part.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process is exporting to %s: %w", f.path, err)
	}
	if found {
		if err := f.readState(); err != nil { // again, now that no other process writes it
			return err
		}
	}
	info, err := f.part.Stat()
	if err != nil {
		return err
	}
	if info.Size() < f.state.Bytes {
		return fmt.Errorf("%s has %d bytes, fewer than the %d that were finished: it was changed; delete it and %s, "+
			"and start again", f.path+partSuffix, info.Size(), f.state.Bytes, f.path+stateSuffix)
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
	read.DisallowUnknownFields() // an unknown field of a later release may change the meaning of the others
	f.state = state{}
	if err := read.Decode(&f.state); err != nil || f.state.Version != Version {
		return fmt.Errorf("%s cannot be read: it is of another release or was "+
			"changed; delete it and %s, and start again (%v)", f.path+stateSuffix, f.path+partSuffix, err)
	}
	return nil
}

// append syncs a chunk, and then stores the new position.
func (f *file) append(packed []byte, at exportPosition) error {
	if _, err := f.part.Write(packed); err != nil {
		return err
	}
	if err := f.part.Sync(); err != nil {
		return err
	}
	f.state.exportPosition = at
	return f.writeState()
}

// writeState replaces the state atomically.
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

// publish gives the file its name and deletes the rest of the export. It links the name instead of
// renaming, because renaming would replace an existing file.
func (f *file) publish() error {
	switch err := os.Link(f.path+partSuffix, f.path); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s %w: it was created during the export, which is complete in %s; move one of them "+
			"away, and repeat the command with --resume", f.path, ErrExists, f.path+partSuffix)
	case err != nil:
		return f.rename()
	}
	return f.cleanUp()
}

// rename is for file systems without hard links. It cannot see a file that is created between the
// check and the renaming.
func (f *file) rename() error {
	if _, err := os.Lstat(f.path); err == nil {
		return fmt.Errorf("%s %w: move it away, and continue with --resume", f.path, ErrExists)
	}
	if err := os.Rename(f.path+partSuffix, f.path); err != nil {
		return err
	}
	return f.cleanUp()
}

// cleanUp syncs the file's name and then deletes the other files of the export, if they still
// exist.
func (f *file) cleanUp() error {
	folder := filepath.Dir(f.path)
	if err := syncFolder(folder); err != nil {
		return err
	}
	if err := os.Remove(f.path + partSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.removeState()
}

func (f *file) removeState() error { return os.Remove(f.path + stateSuffix) }

func (f *file) close() {
	if f.part != nil {
		_ = f.part.Close() // all that counts was synced
	}
}

// syncFolder syncs the names in a folder.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
