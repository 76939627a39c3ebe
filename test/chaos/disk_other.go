//go:build !linux

package main

const diskBytes = 96 << 20

// smallDisk exists only on Linux.
type smallDisk struct{ spool string }

func mountSmallDisk(string) (*smallDisk, error) { return &smallDisk{}, nil }

func (d *smallDisk) remove() {}
