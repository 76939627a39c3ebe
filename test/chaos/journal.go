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

// journal records on disk what the senders sent and what they were promised.
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
	// Forged means that the delivery has no valid signature. Such an entry is written once, before
	// the delivery is sent.
	Forged bool `json:"f,omitzero"`
	// Acknowledged means that the response was 2xx. Without it the entry was written before the
	// delivery was sent.
	Acknowledged bool `json:"a,omitzero"`
	// ID is the event's id in the log, "" if it was Spooled.
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

// close writes the rest and returns the first error of any write.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(j.err, j.out.Flush(), j.file.Close())
}

// readJournal calls each with every entry in the order in which they were written.
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
