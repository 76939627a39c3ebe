package spool_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
)

// errCut is what every call of a disk without power answers.
var errCut = errors.New("the power is gone")

// sector is what a disk writes whole or not at all.
const sector = 512

// volatile is a disk that forgets what was not synced when its power is cut: of each file stays what it held when its last completed sync began, and of what was written since then whatever
// sectors happened to reach the disk; of the names likewise.
type volatile struct {
	mu   sync.Mutex
	rand *rand.Rand
	// left is how many calls there are until the power goes; below zero it never does.
	left  int
	files map[string]*volatileFile
	// durable are the names as they were when the last sync of the folder began, and changes what was done to them since.
	durable map[string]*volatileFile
	changes []func(map[string]*volatileFile)
	// fail makes a kind of call fail, until it is cleared.
	fail map[string]error
}

func newVolatile(seed uint64, calls int) *volatile {
	return &volatile{rand: rand.New(rand.NewPCG(seed, 1)), left: calls, files: map[string]*volatileFile{}, durable: map[string]*volatileFile{}, fail: map[string]error{}}
}

type written struct {
	at   int64
	data []byte
}

type volatileFile struct {
	disk    *volatile
	data    []byte
	durable []byte
	writes  []written
}

// call counts a call. The caller has the lock.
func (d *volatile) call(kind string) error {
	if d.left == 0 {
		return errCut
	}
	if d.left > 0 {
		d.left--
	}
	return d.fail[kind]
}

// cut is what is found when the power is back.
func (d *volatile) cut(calls int) *volatile {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = 0
	for _, change := range d.changes {
		if d.rand.IntN(2) == 0 {
			break // names reach the disk in order, as those of a journal do
		}
		change(d.durable)
	}
	next := newVolatile(d.rand.Uint64(), calls)
	for name, f := range d.durable {
		data := slices.Clone(f.durable)
		for _, w := range f.writes {
			data = d.reach(data, w)
		}
		next.files[name] = &volatileFile{disk: next, data: data, durable: slices.Clone(data)}
	}
	next.durable = maps.Clone(next.files)
	return next
}

// reach lets some sectors of a write reach the disk.
func (d *volatile) reach(data []byte, w written) []byte {
	for from := 0; from < len(w.data); {
		to := min(len(w.data), from+sector-int((w.at+int64(from))%sector))
		if d.rand.IntN(2) == 0 {
			data = grow(data, w.at+int64(to))
			copy(data[w.at+int64(from):], w.data[from:to])
		}
		from = to
	}
	return data
}

func grow(data []byte, size int64) []byte {
	if missing := size - int64(len(data)); missing > 0 {
		return append(data, make([]byte, missing)...)
	}
	return data
}

func (d *volatile) Names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.files)), d.call("names")
}

func (d *volatile) Create(name string) (spool.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("create"); err != nil {
		return nil, err
	}
	if d.files[name] != nil {
		return nil, fs.ErrExist
	}
	f := &volatileFile{disk: d}
	d.change(func(files map[string]*volatileFile) { files[name] = f })
	return f, nil
}

// change does something to the names.
func (d *volatile) change(how func(map[string]*volatileFile)) {
	how(d.files)
	d.changes = append(d.changes, how)
}

func (d *volatile) Open(name string) (spool.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return nil, fs.ErrNotExist
	}
	return d.files[name], d.call("open")
}

func (d *volatile) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("rename"); err != nil {
		return err
	}
	d.change(func(files map[string]*volatileFile) { files[to] = files[from]; delete(files, from) })
	return nil
}

func (d *volatile) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("remove"); err != nil {
		return err
	}
	d.change(func(files map[string]*volatileFile) { delete(files, name) })
	return nil
}

// Sync takes effect in full or not at all.
func (d *volatile) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("sync folder"); err != nil {
		return err
	}
	d.durable, d.changes = maps.Clone(d.files), nil
	return nil
}

func (d *volatile) Close() error { return nil }

func (f *volatileFile) ReadAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.call("read"); err != nil {
		return 0, err
	}
	if at >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *volatileFile) WriteAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.call("write"); err != nil {
		half := len(p) / 2
		f.put(written{at, slices.Clone(p[:half])})
		return half, err
	}
	f.put(written{at, slices.Clone(p)})
	return len(p), nil
}

func (f *volatileFile) put(w written) {
	f.data = grow(f.data, w.at+int64(len(w.data)))
	copy(f.data[w.at:], w.data)
	f.writes = append(f.writes, w)
}

// Sync has begun with what was written before it; what comes while it goes on is not part of it. A sync that fails forgets: some of what it should have written is lost, and the next one has nothing to write.
func (f *volatileFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.call("sync")
	if errors.Is(err, errCut) {
		return err
	}
	if err != nil {
		for _, w := range f.writes {
			f.durable = f.disk.reach(f.durable, w)
		}
	} else {
		for _, w := range f.writes {
			f.durable = grow(f.durable, w.at+int64(len(w.data)))
			copy(f.durable[w.at:], w.data)
		}
	}
	f.writes = nil
	return err
}

func (f *volatileFile) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *volatileFile) Close() error { return nil }

// waiting is a disk whose syncs wait before they begin.
type waiting struct {
	*volatile
	wait func()
}

func (d *waiting) Create(name string) (spool.File, error) {
	f, err := d.volatile.Create(name)
	return waitingFile{f, d.wait}, err
}

type waitingFile struct {
	spool.File
	wait func()
}

func (f waitingFile) Sync() error {
	f.wait()
	return f.File.Sync()
}

// hanging is a disk whose syncs do not end while it hangs.
type hanging struct {
	waiting
	hang  atomic.Bool
	until chan struct{}
}

func newHanging() *hanging {
	d := &hanging{until: make(chan struct{})}
	d.waiting = waiting{newVolatile(1, -1), func() {
		if d.hang.Load() {
			<-d.until
		}
	}}
	return d
}

// newSlow is a disk whose syncs take a while.
func newSlow(takes time.Duration) *waiting {
	return &waiting{newVolatile(1, -1), func() { <-time.After(takes) }}
}

// only is the one segment that was written to.
func (d *volatile) only(t *testing.T) *volatileFile {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if len(bytes.TrimRight(f.data, "\x00")) > 48 {
			return f
		}
	}
	t.Fatal("nothing was written")
	return nil
}

// together: one file holds both.
func (d *volatile) together(a, b string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if bytes.Contains(f.data, []byte(a)) && bytes.Contains(f.data, []byte(b)) {
			return true
		}
	}
	return false
}

// flip turns a bit of the only segment over, anywhere behind its head and before the zeros.
func (d *volatile) flip() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		written := len(bytes.TrimRight(f.data, "\x00"))
		f.data[48+d.rand.IntN(written-48)] ^= 1 << d.rand.IntN(8)
	}
}
