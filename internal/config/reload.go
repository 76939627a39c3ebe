package config

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// Use says for which kind of process a configuration is loaded.
type Use int

// The kinds of processes.
const (
	// ForGateway checks everything, reads secrets and rejects demo secrets.
	ForGateway Use = iota
	// ForProcessor does the same for a process that accepts no deliveries: it does not need the
	// files of ingest.tls.
	ForProcessor
	// ForDev makes the database optional and allows demo secrets.
	ForDev
)

func (u Use) options() loadOptions {
	return loadOptions{secrets: true, demo: u == ForDev, database: u != ForDev, ingest: u != ForProcessor}
}

// Loader loads a configuration when a process starts, and again after the file or a secret's file
// changed.
type Loader struct {
	path string
	use  Use
	edit func(*Config) error

	mu sync.Mutex
	// pipes holds the content of files that can be read only once, by path.
	pipes map[string][]byte
	// loadedDigests are the digests of the files that the last load read, whether it succeeded or
	// not. changedDigests are those that Changed found last, if they differ.
	loadedDigests, changedDigests fileDigests
	started                       *Config
}

// fileDigests maps a path to a digest of the content, or to the reason why there is none.
type fileDigests map[string]string

// NewLoader returns a loader for a file and the environment. An empty path is the environment
// alone. edit changes the configuration after each load, for example by command-line flags. It may
// be nil.
func NewLoader(path string, use Use, edit func(*Config) error) *Loader {
	return &Loader{path: path, use: use, edit: edit, pipes: map[string][]byte{}}
}

// Load reads the configuration as it is now. The error joins every problem, each with its file and
// line, or its variable.
func (l *Loader) Load() (*Config, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &fileTracker{digests: fileDigests{}, pipes: l.pipes}
	p := l.use.options()
	p.fileTracker = f
	c, err := loadFile(l.path, p)
	if err == nil && l.edit != nil {
		err = l.edit(c)
	}
	l.loadedDigests, l.changedDigests = f.digests, nil
	if err != nil {
		return nil, err
	}
	if l.started == nil {
		first := *c // a copy, because the process later adds the addresses of its own servers to c
		l.started = &first
	}
	return c, nil
}

// Changed reports whether the configuration's files differ from the last Load and did not change
// since the previous call. A file that is still being written is therefore not reported.
func (l *Loader) Changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := fileDigests{}
	for path := range l.loadedDigests {
		now[path] = digestFile(path)
	}
	stable := l.changedDigests != nil && maps.Equal(now, l.changedDigests)
	l.changedDigests = nil
	if maps.Equal(now, l.loadedDigests) {
		return false
	}
	l.changedDigests = now
	return stable
}

// NeedRestart returns the settings that differ from those at the process's start, except sources,
// schedules and others that apply without a restart. ingest.max_body_bytes is left out, because it
// may come from a source's own limit.
func (l *Loader) NeedRestart(c *Config) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	addDifferences(reflect.ValueOf(l.started).Elem(), reflect.ValueOf(c).Elem(), nil, &names)
	return slices.DeleteFunc(names, func(name string) bool { return name == "ingest.max_body_bytes" })
}

func addDifferences(a, b reflect.Value, path []string, names *[]string) {
	for i := range a.NumField() {
		name := yamlName(a.Type().Field(i))
		if name == "" || len(path) == 0 &&
			slices.Contains([]string{"sources", "schedules", "destinations", "effects", "forward", "notify"}, name) {
			continue
		}
		at := append(slices.Clone(path), name)
		switch {
		case a.Field(i).Kind() == reflect.Struct:
			addDifferences(a.Field(i), b.Field(i), at, names)
		case !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()):
			*names = append(*names, strings.Join(at, "."))
		}
	}
}

// fileTracker reads files and records the digest of each. A nil one only reads.
type fileTracker struct {
	digests fileDigests
	pipes   map[string][]byte
}

// read returns a file's content. The given reader rejects files that are too large or not regular.
func (f *fileTracker) read(path string, read func(string) ([]byte, error)) ([]byte, error) {
	if f == nil {
		return read(path)
	}
	if b, ok := f.pipes[path]; ok {
		return b, nil
	}
	// before the read: a change during the read is then reported once too often rather than never
	seen := digestFile(path)
	b, err := read(path)
	if err == nil && seen == notRegularFile {
		f.pipes[path] = b
		return b, nil
	}
	f.digests[path] = seen
	return b, err
}

// notRegularFile is the digest of a folder or a pipe.
const notRegularFile = "no regular file"

// digestFile returns a digest of a file. The digest of a file above the size limit is its size and
// time, because no load reads it.
func digestFile(path string) string {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !info.Mode().IsRegular():
		return notRegularFile
	case info.Size() > maxFile:
		return fmt.Sprintf("%d bytes of %s", info.Size(), info.ModTime().Format(time.RFC3339Nano))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "error: " + err.Error()
	}
	sum := sha256.Sum256(b)
	return string(sum[:])
}
