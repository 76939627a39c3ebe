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
	name, err := nameOf(io.NewSectionReader(f, 0, maxName))
	if err == nil && name != "" {
		err = errors.Join(f.Sync(), disk.Sync())
	}
	return name, errors.Join(err, f.Close())
}

func nameOf(file io.Reader) (string, error) {
	text, err := io.ReadAll(file)
	return strings.Trim(string(text), "\x00\n "), err // zeros are what a power cut may leave
}

// NameIn is the name of the spool in a folder, "" where it has none. It leaves all as it is, as Look does.
func NameIn(path string) (string, error) {
	f, err := os.Open(filepath.Join(path, nameFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the spool's name: %w", err)
	}
	defer f.Close()
	name, err := nameOf(io.LimitReader(f, maxName))
	if err != nil {
		return "", fmt.Errorf("read the spool's name: %w", err)
	}
	return name, nil
}

// Place is where a person finds the spool in a folder of this machine.
func Place(path string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "a machine without a name"
	}
	return host + ":" + path
}

// Local is the folder of a spool that a gateway on this machine keeps at a place; "" where the place is on another machine,
// or has no spool of that name. Errors: the folder's, such as fs.ErrPermission.
func Local(place, name string) (string, error) {
	path, here := strings.CutPrefix(place, Place(""))
	if !here || name == "" {
		return "", nil
	}
	if found, err := NameIn(path); err != nil || found != name {
		return "", err
	}
	return path, nil
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
