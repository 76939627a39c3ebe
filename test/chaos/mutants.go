package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/testkit/site"
)

// edit replaces a text that a source file must contain exactly once, with any white space.
type edit struct{ file, old, new string }

// pattern matches the text, with any white space between its words.
func (e edit) pattern() *regexp.Regexp {
	words := strings.Fields(e.old)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	return regexp.MustCompile(strings.Join(words, `\s+`))
}

// mutant is the product with a deliberate fault.
type mutant struct {
	name  string
	edits []edit
	// faults are the faults that reveal it.
	faults []fault
	// breaks are the promises of which the checker must find at least one broken.
	breaks []string
}

// mutants returns all mutants.
func mutants() []mutant {
	outage := []fault{named("PostgreSQL cut off", 2*sec, 2*sec)}
	return []mutant{
		{"acknowledges before the commit",
			[]edit{{"internal/ingest/receive.go", "	queued, err := s.appendDelivery(r, delivery)\n",
				"	var queued *queuedDelivery\n	var err error\n	ep := r.ep\n	r.result = \"spooled\"\n	" +
					"go func() { _ = s.appender.enqueue(s.appender.newQueued(queuedDelivery{ep: ep, delivery: " +
					"delivery})) }()\n"}},
			outage, []string{lost}},
		{"acknowledges deliveries that are not spooled",
			[]edit{{"internal/ingest/spooling.go", "	if err := s.Spool.Append(ctx, record); err != nil {\n",
				"	_ = record\n	if err := ctx.Err(); err != nil {\n"}},
			outage, []string{lost}},
		{"accepts forged deliveries",
			[]edit{{"internal/ingest/receive.go", "	verification, err := r.ep.Provider.Verify(r.ep.Config, d)\n",
				"	verification, err := r.ep.Provider.Verify(r.ep.Config, d)\n	err = nil\n"}}, nil,
			[]string{forgedAccepted}},
		{"skips the version rule", []edit{{"internal/versioning/rule.go", "	c := in.Version.Compare(row.Version)\n",
			"	c := 1\n"},
			{"internal/versioning/store.go", "\n   <= (excluded.overwritten_at, excluded.version_final, " +
				"excluded.version_at, excluded.version_seen, excluded.version_rank)\n", " IS NOT NULL\n"}},
			nil, []string{regressed}},
		{"has no republisher", []edit{{"internal/processor/republisher.go", "		err := a.passWithTimeout(ctx)\n",
			"		var err error\n"}},
			[]fault{named("NATS cut off", 2*sec, 2*sec)}, []string{wrongOutcome}},
	}
}

// named returns a fault of the kind with this name.
func named(name string, at, lasts time.Duration) fault {
	for _, kinds := range faultGroups() {
		for _, k := range kinds {
			if k.name == name {
				return fault{at: at, lasts: lasts, kind: k}
			}
		}
	}
	panic("no fault has the name " + name)
}

// sabotage is a manual change of stored data.
type sabotage struct {
	name, sql string
	breaks    []string
}

func sabotages() []sabotage {
	return []sabotage{
		{"a key is deleted", `DELETE FROM postern.event_keys WHERE id = (SELECT min(id) FROM postern.event_keys)`,
			[]string{verified}},
		{"an outcome before the republisher's cursor is deleted", `DELETE FROM postern.outcomes
			WHERE event_id = (SELECT min(event_id) FROM postern.outcomes)`, []string{wrongOutcome}},
		{"an object gets an older version", `UPDATE postern.objects SET version_at = version_at - 1
			WHERE (source, account, object_type, object_id) =
			(SELECT source, account, object_type, object_id FROM postern.objects WHERE version_at > 1 LIMIT 1)`,
			[]string{regressed}},
		{"an event is deleted", `DELETE FROM postern.events WHERE id = (SELECT max(id) FROM postern.events)`,
			[]string{lost}},
	}
}

// mutantLasts is how long deliveries are sent. mutantFinishes is how long the faulty product may
// take to correct itself.
const mutantLasts, mutantFinishes = 6 * time.Second, 15 * time.Second

// everyMutant fails unless the checks find nothing in the unchanged product, and notice each mutant
// and each sabotage.
func everyMutant(ctx context.Context, out io.Writer, a options) error {
	bin, err := os.MkdirTemp("", "postern-chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	if err := site.Build(ctx, bin, append(site.Daemons(), site.Tools()...)); err != nil {
		return err
	}
	if err := everySabotage(ctx, out, a, bin); err != nil {
		return err
	}
	if err := transientSabotage(ctx, out, a, bin); err != nil {
		return err
	}
	for i, m := range mutants() {
		dir := filepath.Join(bin, fmt.Sprint("mutant", i))
		if err := m.build(ctx, bin, dir); err != nil {
			return fmt.Errorf("the product that %s: %w", m.name, err)
		}
		c, err := mutantRun(ctx, a, dir, func(*run) []fault { return m.faults }, nil)
		if err != nil {
			return fmt.Errorf("the product that %s: %w", m.name, err)
		}
		if err := noticed(out, "the product "+m.name, c, m.breaks); err != nil {
			return err
		}
	}
	return nil
}

// everySabotage checks that a run of the unchanged product has no findings. Then it applies each
// sabotage.
func everySabotage(ctx context.Context, out io.Writer, a options, bin string) error {
	_, err := mutantRun(ctx, a, bin, func(*run) []fault { return nil }, func(r *run, c *checker) error {
		if err := c.found(); err != nil {
			return fmt.Errorf("the unchanged product: %w", err)
		}
		fmt.Fprintln(out, "the unchanged product: no findings")
		for _, hand := range sabotages() {
			if err := hand.do(ctx, r.site); err != nil {
				return err
			}
			c, err := r.checkPromises(ctx, 0) // all work is finished, and no process corrects the sabotage
			if err != nil {
				return err
			}
			if err := noticed(out, hand.name, c, hand.breaks); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// do changes one row without the constraints and triggers of the database.
func (s sabotage) do(ctx context.Context, on *site.Site) error {
	conn, err := pgx.Connect(ctx, on.Postgres.PrimaryURL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SET session_replication_role = replica"); err != nil {
		return err
	}
	done, err := conn.Exec(ctx, s.sql)
	if err != nil || done.RowsAffected() != 1 {
		return fmt.Errorf("%s: %d rows: %w", s.name, done.RowsAffected(), err)
	}
	return nil
}

// noticed prints the findings, and fails unless one of the promises was broken.
func noticed(out io.Writer, what string, c *checker, breaks []string) error {
	n := 0
	for _, promise := range breaks {
		n += c.counts[promise]
	}
	if n == 0 {
		return fmt.Errorf("%s: the checks did not notice it; they found: %v", what, c.found())
	}
	fmt.Fprintf(out, "%s: noticed, %s: %d\n", what, strings.Join(breaks, ", "), n)
	return nil
}

// transient are two sabotages that give an object an older version and then the current one again,
// so that the final state is correct. No event changes that object meanwhile.
var transient = [2]sabotage{
	{name: "an object gets an older version for a moment", sql: `UPDATE postern.objects SET version_at = version_at - 1
		WHERE object_id =
		(SELECT min(object_id) FROM postern.objects WHERE object_type = 'widget' AND version_final)
			AND object_type = 'widget'`},
	{name: "and forward again", sql: `UPDATE postern.objects SET version_at = version_at + 1
		WHERE object_type = 'widget' AND version_final AND version_at = 4`},
}

// transientSabotage applies them while deliveries arrive. Only the watcher can notice.
func transientSabotage(ctx context.Context, out io.Writer, a options, bin string) error {
	c, err := mutantRun(ctx, a, bin, func(r *run) []fault {
		hands := &kind{name: transient[0].name, begin: func(ctx context.Context, s *site.Site, _ int) error {
			ctx, cancel := context.WithTimeout(ctx, site.OperationTimeout)
			defer cancel()
			err := transient[0].do(ctx, s)
			for err != nil && sleep(ctx, readEvery) { // there is no such object yet
				err = transient[0].do(ctx, s)
			}
			return errors.Join(err, r.watcher.waitForPasses(ctx, 2))
		}, end: func(ctx context.Context, s *site.Site, _ int) error { return transient[1].do(ctx, s) }}
		return []fault{{at: 4 * sec, kind: hands}}
	}, nil)
	if err != nil {
		return err
	}
	if err := noticed(out, transient[0].name, c, []string{wentBack}); err != nil {
		return err
	}
	if len(c.counts) > 1 {
		return fmt.Errorf("%s: other checks than the watcher's have findings too: %w", transient[0].name, c.found())
	}
	return nil
}

// mutantRun executes a short run with some faults. It calls then, if not nil, before the site is
// closed.
func mutantRun(ctx context.Context, a options, bin string, faults func(*run) []fault,
	then func(*run, *checker) error) (c *checker, err error) {
	s, err := site.Start(ctx, site.Options{Bin: bin, Settings: sources})
	defer func() { err = errors.Join(err, s.Close()) }()
	if err != nil {
		return nil, err
	}
	r, err := newRun(s, a.seed, io.Discard)
	if err != nil {
		return nil, err
	}
	r.allFaults = true
	if err := r.execute(ctx, mutantLasts, a.clients, [][]fault{faults(r)}); err != nil {
		return nil, err
	}
	if c, err = r.checkPromises(ctx, mutantFinishes); err != nil || then == nil {
		return c, err
	}
	return c, then(r, c)
}

// build builds the faulty daemons in dir and links the unchanged tools there.
func (m mutant) build(ctx context.Context, bin, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, tool := range []string{"postern", "natsd"} {
		if err := os.Symlink(filepath.Join(bin, tool), filepath.Join(dir, tool)); err != nil {
			return err
		}
	}
	overlay, err := m.overlay(ctx, dir)
	if err != nil {
		return err
	}
	return site.Build(ctx, dir, site.Daemons(), "-overlay", overlay)
}

// overlay writes the changed files, and the overlay file that makes go build use them.
func (m mutant) overlay(ctx context.Context, dir string) (file string, err error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	replace := map[string]string{}
	for i, e := range m.edits {
		path := filepath.Join(strings.TrimSpace(string(root)), e.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		found := e.pattern().FindAllStringIndex(string(text), -1)
		if len(found) != 1 {
			return "", fmt.Errorf("%s does not contain this text exactly once: write the mutant again: %s", e.file,
				e.old)
		}
		replace[path] = filepath.Join(dir, fmt.Sprintf("edit%d.go", i))
		changed := string(text[:found[0][0]]) + strings.TrimSpace(e.new) + string(text[found[0][1]:])
		if err := os.WriteFile(replace[path], []byte(changed), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}
