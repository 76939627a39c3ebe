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

// Use is what a configuration is loaded for: who is strict about what.
type Use int

// The uses a process may have for a configuration.
const (
	// ForGateway checks everything, reads secrets and refuses demo secrets.
	ForGateway Use = iota
	// ForProcessor does so for a process that takes no deliveries: the files of ingest.tls need not be there.
	ForProcessor
	// ForDev leaves the database to `postern dev` and allows demo secrets.
	ForDev
)

func (u Use) purpose() purpose {
	return purpose{secrets: true, demo: u == ForDev, database: u != ForDev, ingest: u != ForProcessor}
}

// Loader loads one configuration at the start of a process and again whenever it, or a secret's file, has changed.
type Loader struct {
	path string
	use  Use
	edit func(*Config) error

	mu sync.Mutex
	// once has what can be read only once (a pipe), by path.
	once map[string][]byte
	// loaded is what the last load saw of each file it read, good or bad; unsettled what Changed found last, if that was another.
	loaded, unsettled sightings
	first             *Config
}

// sightings are what was seen of files: a digest of the content, or why there is none.
type sightings map[string]string

// NewLoader is for a file and the environment; an empty path is the environment alone. edit is laid over what was read, each
// time: what the command line says. It may be nil.
func NewLoader(path string, use Use, edit func(*Config) error) *Loader {
	return &Loader{path: path, use: use, edit: edit, once: map[string][]byte{}}
}

// Load reads the configuration as it is now. The error joins every problem there is, each with its file and line, or the variable.
func (l *Loader) Load() (*Config, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &files{seen: sightings{}, once: l.once}
	p := l.use.purpose()
	p.files = f
	c, err := loadFile(l.path, p)
	if err == nil && l.edit != nil {
		err = l.edit(c)
	}
	l.loaded, l.unsettled = f.seen, nil
	if err != nil {
		return nil, err
	}
	if l.first == nil {
		first := *c // the process puts into it what it finds out: where its own servers are
		l.first = &first
	}
	return c, nil
}

// Changed tells whether the configuration's files are other than the last Load saw them, and have stayed so since the last
// call: a file that is still being written is left alone for once more.
func (l *Loader) Changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := sightings{}
	for path := range l.loaded {
		now[path] = look(path)
	}
	settled := l.unsettled != nil && maps.Equal(now, l.unsettled)
	l.unsettled = nil
	if maps.Equal(now, l.loaded) {
		return false
	}
	l.unsettled = now
	return settled
}

// NeedRestart names the settings in which c differs from what the process started with, besides the sources and schedules. A source's own
// limit may come from ingest.max_body_bytes, so that is not one of them.
func (l *Loader) NeedRestart(c *Config) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	differing(reflect.ValueOf(l.first).Elem(), reflect.ValueOf(c).Elem(), nil, &names)
	return slices.DeleteFunc(names, func(name string) bool { return name == "ingest.max_body_bytes" })
}

func differing(a, b reflect.Value, path []string, names *[]string) {
	for i := range a.NumField() {
		name := yamlName(a.Type().Field(i))
		if name == "" || len(path) == 0 && slices.Contains([]string{"sources", "schedules", "destinations", "effects", "notify"}, name) {
			continue
		}
		at := append(slices.Clone(path), name)
		switch {
		case a.Field(i).Kind() == reflect.Struct:
			differing(a.Field(i), b.Field(i), at, names)
		case !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()):
			*names = append(*names, strings.Join(at, "."))
		}
	}
}

// files reads files and remembers what it saw of each. A nil one only reads.
type files struct {
	seen sightings
	once map[string][]byte
}

// read gives a file's content through a reader that refuses what is too large or no file.
func (f *files) read(path string, read func(string) ([]byte, error)) ([]byte, error) {
	if f == nil {
		return read(path)
	}
	if b, ok := f.once[path]; ok {
		return b, nil
	}
	seen := look(path) // before it is read: what changes in between is seen as a change, once too often rather than not at all
	b, err := read(path)
	if err == nil && seen == noFile {
		f.once[path] = b
		return b, nil
	}
	f.seen[path] = seen
	return b, err
}

// noFile is what there is to see of a folder or a pipe.
const noFile = "no regular file"

// look is what there is to see of a file now. Sizes are bounded by whoever loads it; here a longer one only has to look different.
func look(path string) string {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !info.Mode().IsRegular():
		return noFile
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
