package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	nameFile = "name"
	// maxName bounds how much of the file is read, in bytes.
	maxName = 1 << 10
)

// Name returns the name that identifies the spool to others. It is created with the folder and
// stays the same, also after a power failure.
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
		return "", fmt.Errorf("create the spool's name: %w", err)
	}
	return name, nil
}

// readName returns "" if there is no name. It syncs the file, because the process that wrote the
// name may have ended before that.
func readName(disk Disk) (string, error) {
	f, err := disk.Open(nameFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxName))
	name := trimName(text)
	if err == nil && name != "" {
		err = errors.Join(f.Sync(), disk.Sync())
	}
	return name, errors.Join(err, f.Close())
}

// trimName removes the newline, and the zeros that a power failure may leave.
func trimName(text []byte) string { return strings.Trim(string(text), "\x00\n ") }

// NameOfFolder returns the name of the spool in a folder, "" if it has none. Like Inspect it
// changes nothing.
func NameOfFolder(path string) (string, error) {
	text, err := os.ReadFile(filepath.Join(path, nameFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the spool's name: %w", err)
	}
	return trimName(text), nil
}

// Location returns host and path of a spool in a folder of this machine, for operators.
func Location(path string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return host + ":" + path
}

// LocalFolder returns the folder of a spool by its location, if it is on this machine. It returns
// "" if the location is on another machine, or if the folder has no spool of that name. Errors:
// those of the folder, such as fs.ErrPermission.
func LocalFolder(location, name string) (string, error) {
	path, isLocal := strings.CutPrefix(location, Location(""))
	if !isLocal || name == "" {
		return "", nil
	}
	if found, err := NameOfFolder(path); err != nil || found != name {
		return "", err
	}
	return path, nil
}

// writeName writes the complete name durably, or nothing.
func writeName(disk Disk, name string) error {
	const temporary = nameFile + ".new"
	if err := disk.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := disk.Create(temporary)
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
	if err := disk.Rename(temporary, nameFile); err != nil {
		return err
	}
	return disk.Sync()
}
