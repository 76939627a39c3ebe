package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// journal is the senders' own record, on disk: what they tried, and what they were promised.
type journal struct {
	mu   sync.Mutex
	file *os.File
	out  *bufio.Writer
	err  error
}

// entry is a line of the journal.
type entry struct {
	Source string `json:"s"`
	Key    string `json:"k"`
	Digest digest `json:"d"`
	// Forged: nobody who could prove it has sent it. It is told once, before the delivery is tried.
	Forged bool `json:"f,omitzero"`
	// Acknowledged: it was answered 2xx; else it is about to be tried.
	Acknowledged bool `json:"a,omitzero"`
	// ID is the log's id, "" where it was Spooled.
	ID       string `json:"id,omitzero"`
	Spooled  bool   `json:"sp,omitzero"`
	Conflict bool   `json:"c,omitzero"`
}

func openJournal(path string) (*journal, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &journal{file: f, out: bufio.NewWriterSize(f, 1<<20)}, nil
}

func (j *journal) write(e entry) {
	line, err := json.Marshal(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		_, err = j.out.Write(append(line, '\n'))
	}
	j.err = errors.Join(j.err, err)
}

// close makes the journal whole; errors of writing come now.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(j.err, j.out.Flush(), j.file.Close())
}

// readJournal gives each entry to a function, in the order in which they were written.
func readJournal(path string, each func(entry) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for {
		var e entry
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read journal: %w", err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
}
