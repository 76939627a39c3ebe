package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/spool"
)

// checkConfig reports the problems of the configuration, and settings that are probably not
// intended.
func (e *examination) checkConfig() {
	problems := config.FlattenProblems(e.ConfigError)
	for _, p := range problems {
		e.add(Error, "config.valid", p.Error(), "correct the line, then check it with postern config check FILE")
	}
	c := e.Config
	if c == nil {
		return
	}
	if len(problems) == 0 {
		e.add(OK, "config.valid", countOf(len(c.Sources), "source")+", all secrets can be read", "")
	}
	for _, warning := range slices.Concat(c.Warnings(), c.EffectWarnings()) {
		e.add(Warn, "config.doubtful", warning, "change the setting, unless it is intended")
	}
	e.checkSecrets(c)
	e.checkListeners(c)
	e.checkSpool(c.Ingest.Spool)
}

// checkSecrets reports secret files that are missing, or that every account of this machine can
// read.
func (e *examination) checkSecrets(c *config.Config) {
	files, reported := c.SecretFiles(), 0
	for _, f := range files {
		info, err := os.Stat(f.Path)
		if err != nil {
			reported++
			e.add(Error, "config.secrets", f.Setting+": "+err.Error(), "create the file, and allow the daemon's "+
				"account to read it")
			continue
		}
		if info.Mode().Perm()&0o007 != 0 && info.Mode().IsRegular() {
			reported++
			e.add(Warn, "config.secrets", fmt.Sprintf("%s: every account of this machine can read %s (mode "+
				"%04o)", f.Setting, f.Path, info.Mode().Perm()),
				"chmod o-rwx "+f.Path+", and give it to the daemon's account or group")
		}
	}
	if reported == 0 {
		e.add(OK, "config.secrets", countOf(len(files), "file")+" with secrets, none readable by every account", "")
	}
}

// checkListeners reports who can reach the addresses for operators.
func (e *examination) checkListeners(c *config.Config) {
	admin := c.Admin.ListenOr(config.DefaultAdminListen)
	switch {
	case config.IsLoopback(admin):
		e.add(OK, "config.admin", admin+", reachable from this machine only", "")
	case c.Admin.TLS.Cert != "":
		e.add(OK, "config.admin", admin+", with TLS and tokens", "")
	default:
		e.add(Warn, "config.admin", admin+" requires a token, but has no certificate: anyone who reads a token on the "+
			"network can use it", "set admin.tls, or use a proxy that terminates TLS")
	}
	if m := c.Admin.MetricsListen; m != "" {
		host, _, _ := net.SplitHostPort(m)
		ip := net.ParseIP(host)
		everywhere := host == "" || ip != nil && ip.IsUnspecified()
		e.add(okIf(!everywhere, Warn), "config.metrics", "metrics and health are served on "+m,
			"set admin.metrics_listen to an address of the internal network, or use a firewall: this address "+
				"requires no authentication")
	}
}

// checkSpool checks the gateway's spool and its folder.
func (e *examination) checkSpool(s config.Spool) {
	if e.Spool != nil {
		e.checkSpoolContent(e.Spool.Stats())
	}
	if s.Dir == "" {
		e.add(Warn, "spool.folder", "no folder is set (ingest.spool.dir): while PostgreSQL is unavailable, "+
			"deliveries get status 503 and senders retry", "for a gateway, set a folder on its own disk")
		return
	}
	if err := config.CheckSpool(s); err != nil {
		e.add(Error, "spool.folder", err.Error(), "name a folder on a disk")
		return
	}
	if err := checkWritable(s.Dir); err != nil {
		e.add(Error, "spool.folder", err.Error(), "allow the gateway's account to write there, or run this command as "+
			"that account")
		return
	}
	e.add(OK, "spool.folder", s.Dir+" is writable", "")
	e.checkSpoolFiles(s.Dir)
}

// checkSpoolContent reports how many deliveries wait for PostgreSQL.
func (e *examination) checkSpoolContent(s spool.Stats) {
	if s.Records == 0 {
		e.add(OK, "spool.content", "no delivery waits for PostgreSQL", "")
		return
	}
	e.add(Warn, "spool.content", fmt.Sprintf("deliveries that wait for PostgreSQL: %d (%d bytes), the oldest since %s",
		s.Records, s.Bytes, s.Oldest.UTC().Format(time.RFC3339)),
		"the gateway stores them as soon as PostgreSQL responds")
}

// checkSpoolFiles reports the files of a spool that an operator must review. It accepts a folder
// that does not exist.
func (e *examination) checkSpoolFiles(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.add(Warn, "spool.files", err.Error(),
			"run this command as the account of that gateway, to see whether files are quarantined")
		return
	}
	quarantined := 0
	for _, entry := range entries {
		if ext := filepath.Ext(entry.Name()); ext == ".damaged" || ext == ".quarantined" {
			quarantined++
		}
	}
	e.add(okIf(quarantined == 0, Error), "spool.files", fmt.Sprintf("%s quarantined in %s", countOf(quarantined,
		"file"), dir), "postern verify --spool "+dir+" lists the lost and the pending deliveries of each file, and "+
		"what to do; each file is reported until it is removed")
}

// checkWritable tries to create a file in a folder or, where it does not exist, in its nearest
// existing parent.
func checkWritable(dir string) error {
	info, err := os.Stat(dir)
	for errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	f, err := os.CreateTemp(dir, "doctor-*.tmp") // a gateway does not read a file of this name
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// otherFiles is the number of files that a gateway opens besides its connections.
const otherFiles = 500

// checkOpenFiles checks the limit of this session. The limit of a daemon may differ.
func (e *examination) checkOpenFiles() {
	if e.Config == nil {
		return
	}
	limit, ok := openFileLimit()
	if !ok {
		return
	}
	need := uint64(e.Config.Ingest.MaxConnections) + otherFiles //nolint:gosec // at least 1
	e.add(okIf(limit >= need, Warn), "machine.files", fmt.Sprintf("a session like this one may open %d files; %d "+
		"connections are allowed (ingest.max_connections)", limit, e.Config.Ingest.MaxConnections),
		fmt.Sprintf("raise the limit of the gateway to %d (LimitNOFILE= of its unit, ulimit -n), or lower "+
			"ingest.max_connections; a connection above the limit of files is not accepted", need))
}

func countOf(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// joinWords joins words with commas.
func joinWords(words []string) string { return strings.Join(words, ", ") }
