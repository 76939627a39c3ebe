package stream

import (
	"fmt"
	"slices"
)

// release is the version of a NATS server: major, minor and patch.
type release [3]int

func (r release) String() string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }

// cleanReleases are the first releases without a published vulnerability, one for each release line
// of the NATS server, the oldest line first. Lines 2.11 and older have none. Source:
// https://advisories.nats.io, notes up to 2026-28, as of 2026-11-25;
// docs/decisions/0016-nats-releases.md has the details.
var cleanReleases = []release{{2, 12, 12}, {2, 14, 3}, {2, 15, 0}}

const advisories = "https://advisories.nats.io"

// CheckServer rejects a server whose release has published vulnerabilities. It returns nil while no
// server is connected.
func (c *Conn) CheckServer() error {
	version := c.nc.ConnectedServerVersion()
	if version == "" {
		return nil
	}
	return checkServer(version)
}

// checkServer rejects a version below the first clean release of its line, and a line without a
// clean release. It accepts lines that are newer than all known ones.
func checkServer(version string) error {
	var v release
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return fmt.Errorf("read the version of nats-server %q: %w", version, err)
	}
	newest := cleanReleases[len(cleanReleases)-1]
	i := slices.IndexFunc(cleanReleases, func(r release) bool { return r[0] == v[0] && r[1] == v[1] })
	switch {
	case i >= 0 && v[2] < cleanReleases[i][2]:
		return fmt.Errorf("nats-server %s has published vulnerabilities (%s): install %s or a newer release of the "+
			"%d.%d line", version, advisories, cleanReleases[i], v[0], v[1])
	case i < 0 && slices.Compare(v[:], newest[:]) < 0:
		return fmt.Errorf("nats-server %s has published vulnerabilities (%s), and no release of its line fixes them "+
			"all: install one of %v, or a newer release of these lines", version, advisories, cleanReleases)
	}
	return nil
}
