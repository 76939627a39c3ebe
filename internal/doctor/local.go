package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/config"
)

// configuration tells the problems of the configuration, and what of it is likely not meant.
func (e *examination) configuration() {
	problems := config.Problems(e.ConfigError)
	for _, p := range problems {
		e.add(Error, "config.valid", p.Error(), "mend the line; postern config check FILE tells whether it is well then")
	}
	c := e.Config
	if c == nil {
		return
	}
	if len(problems) == 0 {
		e.add(OK, "config.valid", counted(len(c.Sources), "source")+", all secrets are there and can be read", "")
	}
	for _, warning := range slices.Concat(c.Warnings(), c.EffectWarnings()) {
		e.add(Warn, "config.doubtful", warning, "change the setting, unless it is meant")
	}
	e.secrets(c)
	e.listeners(c)
	e.spool(c.Ingest.Spool)
}

// secrets wants that files which hold secrets are not for everybody.
func (e *examination) secrets(c *config.Config) {
	files, open := c.SecretFiles(), 0
	for _, f := range files {
		info, err := os.Stat(f.Path)
		if err != nil {
			open++
			e.add(Error, "config.secrets", f.Setting+": "+err.Error(), "put the file there, and let the daemon's account read it")
			continue
		}
		if info.Mode().Perm()&0o007 != 0 && info.Mode().IsRegular() {
			open++
			e.add(Warn, "config.secrets", fmt.Sprintf("%s: %s can be read by every account of this machine (mode %04o)", f.Setting, f.Path, info.Mode().Perm()),
				"chmod o-rwx "+f.Path+", and give it to the daemon's account or group")
		}
	}
	if open == 0 {
		e.add(OK, "config.secrets", counted(len(files), "file")+" with secrets, none of which every account can read", "")
	}
}

// listeners tells who can reach the interfaces of operators.
func (e *examination) listeners(c *config.Config) {
	admin := c.Admin.ListenOr(config.DefaultAdminListen)
	switch {
	case config.Loopback(admin):
		e.add(OK, "config.admin", admin+", for this machine alone", "")
	case c.Admin.TLS.Cert != "":
		e.add(OK, "config.admin", admin+", with TLS, asks each caller for a token", "")
	default:
		e.add(Warn, "config.admin", admin+" asks each caller for a token, but has no certificate: whoever overhears a token can use it", "set admin.tls, or let something before it end TLS")
	}
	if m := c.Admin.MetricsListen; m != "" {
		host, _, _ := net.SplitHostPort(m)
		ip := net.ParseIP(host)
		everywhere := host == "" || ip != nil && ip.IsUnspecified()
		e.add(unless(!everywhere, Warn), "config.metrics", "metrics and health are served on "+m, "bind admin.metrics_listen to an address of the inner network, or keep others from it by a firewall: it asks nobody who they are")
	}
}

// spool looks at the folder of the gateway's spool.
func (e *examination) spool(s config.Spool) {
	if s.Dir == "" {
		e.add(Warn, "spool.folder", "there is none (ingest.spool.dir): while PostgreSQL is away, deliveries are answered 503 and senders try again", "name a folder on a disk of the gateway's own, if this is a gateway")
		return
	}
	if err := config.CheckSpool(s); err != nil {
		e.add(Error, "spool.folder", err.Error(), "name a folder on a disk")
		return
	}
	if err := writable(s.Dir); err != nil {
		e.add(Error, "spool.folder", err.Error(), "let the gateway's account write there, or run this command as that account")
		return
	}
	e.add(OK, "spool.folder", s.Dir+" can be written to", "")
	e.spoolFiles(s.Dir)
}

// spoolFiles reports the files of a spool that an operator must look at. A folder that does not
// exist has none.
func (e *examination) spoolFiles(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.add(Warn, "spool.files", err.Error(),
			"run this command as the account of that gateway, to see whether files were set apart")
		return
	}
	apart := 0
	for _, entry := range entries {
		if ext := filepath.Ext(entry.Name()); ext == ".damaged" || ext == ".refused" {
			apart++
		}
	}
	e.add(unless(apart == 0, Error), "spool.files", fmt.Sprintf("%s set apart for a person in %s", counted(apart, "file"), dir),
		"postern verify --spool "+dir+" says what of them is lost or waits, and what mends it; a file is reported until it is removed")
}

// writable tries whether files can be made in a folder or, where it is not there yet, in the nearest one above it that is.
func writable(dir string) error {
	info, err := os.Stat(dir)
	for errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder", dir)
	}
	f, err := os.CreateTemp(dir, "doctor-*.tmp") // no name of a spool's
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// spareFiles is what a gateway opens besides its connections.
const spareFiles = 500

// machine looks at what this session may use; that of a daemon may differ.
func (e *examination) machine() {
	if e.Config == nil {
		return
	}
	most, ok := openFiles()
	if !ok {
		return
	}
	need := uint64(e.Config.Ingest.MaxConnections) + spareFiles //nolint:gosec // at least 1
	e.add(unless(most >= need, Warn), "machine.files", fmt.Sprintf("%d files may be open at once in a session like this; %d connections are allowed (ingest.max_connections)", most, e.Config.Ingest.MaxConnections),
		fmt.Sprintf("raise the limit of the gateway to %d (LimitNOFILE= of its unit, ulimit -n), or lower ingest.max_connections; what finds no file is not accepted", need))
}

func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// listed joins a few words.
func listed(words []string) string { return strings.Join(words, ", ") }
