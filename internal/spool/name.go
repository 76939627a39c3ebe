package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

const (
	nameFile = "name"
	// maxName bounds what is read of it, in bytes.
	maxName = 1 << 10
)

// Name is by what others know a spool: it is made with the folder, and stays with it, whenever the power is cut after it was told.
func Name(disk Disk) (string, error) {
	name, err := readName(disk)
	if err != nil {
		return "", fmt.Errorf("read the spool's name: %w", err)
	}
	if name != "" {
		return name, nil
	}
	name = strings.ToLower(rand.Text())
	if err := writeName(disk, name); err != nil {
		return "", fmt.Errorf("name the spool: %w", err)
	}
	return name, nil
}

// readName is "" where there is none. Who wrote it may have died before it was durable, so it is synced again.
func readName(disk Disk) (string, error) {
	f, err := disk.Open(nameFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxName))
	name := strings.Trim(string(text), "\x00\n ") // zeros are what a power cut may leave
	if err == nil && name != "" {
		err = errors.Join(f.Sync(), disk.Sync())
	}
	return name, errors.Join(err, f.Close())
}

// writeName leaves the whole name, durable, or none.
func writeName(disk Disk, name string) error {
	const fresh = nameFile + ".new"
	if err := disk.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := disk.Create(fresh)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(name+"\n"), 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := disk.Rename(fresh, nameFile); err != nil {
		return err
	}
	return disk.Sync()
}
