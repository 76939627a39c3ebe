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
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/testkit/site"
)

// edit replaces a text of a source file, which must be in it once.
type edit struct{ file, old, new string }

// mutant is the product, broken on purpose.
type mutant struct {
	name  string
	edits []edit
	// faults are what must fail for it to show.
	faults []fault
	// breaks are promises of which at least one must be found broken.
	breaks []string
}

// mutants are broken programs.
func mutants() []mutant {
	outage := []fault{named("PostgreSQL cut off", 2*sec, 2*sec)}
	return []mutant{
		{"acknowledges before the commit",
			[]edit{{"internal/ingest/receive.go", "	w, err := s.appendDelivery(v, delivery)\n",
				"	var w *queuedDelivery\n	var err error\n	ep := v.ep\n	v.result = \"spooled\"\n	go " +
					"func() { " +
					"_ = " +
					"s.appender.enqueue(s.appender.newQueued(queuedDelivery{ep: ep, delivery: delivery})) }()\n"}},
			outage, []string{lost}},
		{"acknowledges what the spool does not have",
			[]edit{{"internal/ingest/spooling.go", "	if err := s.Spool.Append(ctx, record); err != nil {\n",
				"	_ = record\n	if err := ctx.Err(); err != nil {\n"}},
			outage, []string{lost}},
		{"believes what is forged",
			[]edit{{"internal/ingest/receive.go", "	verification, err := v.ep.Provider.Verify(v.ep.Config, d)\n",
				"	verification, err := v.ep.Provider.Verify(v.ep.Config, d)\n	err = nil\n"}}, nil,
			[]string{forgedAccepted}},
		{"skips the version rule", []edit{{"internal/versioning/rule.go", "	c := in.Version.Compare(row.Version)\n",
			"	c := 1\n"},
			{"internal/versioning/store.go", "\n   <= (excluded.settled, excluded.version_final, " +
				"excluded.version_at, excluded.version_seen, excluded.version_rank)\n", " IS NOT NULL\n"}},
			nil, []string{regressed}},
		{"has no republisher", []edit{{"internal/processor/republisher.go", "		err := a.passWithTimeout(ctx)\n",
			"		var err error\n"}},
			[]fault{named("NATS cut off", 2*sec, 2*sec)}, []string{wrongOutcome}},
	}
}

// named is a fault of a kind.
func named(name string, at, lasts time.Duration) fault {
	for _, kinds := range lanes() {
		for _, k := range kinds {
			if k.name == name {
				return fault{at: at, lasts: lasts, kind: k}
			}
		}
	}
	panic("no fault is called " + name)
}

// sabotage is a hand that changes what is stored.
type sabotage struct {
	name, sql string
	breaks    []string
}

func sabotages() []sabotage {
	return []sabotage{
		{"a key is deleted", `DELETE FROM postern.event_keys WHERE id = (SELECT min(id) FROM postern.event_keys)`,
			[]string{verified}},
		{"an outcome is deleted that the auditor has passed", `DELETE FROM postern.outcomes
			WHERE event_id = (SELECT min(event_id) FROM postern.outcomes)`, []string{wrongOutcome}},
		{"an object is set back", `UPDATE postern.objects SET version_at = version_at - 1
			WHERE (source, account, object_type, object_id) =
			(SELECT source, account, object_type, object_id FROM postern.objects WHERE version_at > 1 LIMIT 1)`,
			[]string{regressed}},
		{"an event is deleted", `DELETE FROM postern.events WHERE id = (SELECT max(id) FROM postern.events)`,
			[]string{lost}},
	}
}

// mutantLasts is how long deliveries come in, and mutantSettles how long the broken product is
// given to make it right all the same.
const mutantLasts, mutantSettles = 6 * time.Second, 15 * time.Second

// everyMutant fails unless the product as it is breaks nothing, and each mutant and each hand is
// noticed.
func everyMutant(ctx context.Context, out io.Writer, a asked) error {
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
	if err := passingSabotage(ctx, out, a, bin); err != nil {
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

// everySabotage changes what the product has stored, after it was found to be right.
func everySabotage(ctx context.Context, out io.Writer, a asked, bin string) error {
	_, err := mutantRun(ctx, a, bin, func(*run) []fault { return nil }, func(r *run, c *checker) error {
		if err := c.found(); err != nil {
			return fmt.Errorf("the product as it is: %w", err)
		}
		fmt.Fprintln(out, "the product as it is: nothing found")
		for _, hand := range sabotages() {
			if err := hand.do(ctx, r.site); err != nil {
				return err
			}
			c, err := r.examine(ctx, 0) // it was settled, and nobody makes this right
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

// do changes a row past all that the database has against it.
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

// noticed prints what was found, and fails unless one of the promises is broken.
func noticed(out io.Writer, what string, c *checker, breaks []string) error {
	n := 0
	for _, promise := range breaks {
		n += c.counts[promise]
	}
	if n == 0 {
		return fmt.Errorf("%s, and nobody noticed; found was: %v", what, c.found())
	}
	fmt.Fprintf(out, "%s: noticed, %s: %d\n", what, strings.Join(breaks, ", "), n)
	return nil
}

// passing are hands that set an object back and forward again, so that nothing of it is left in the
// end. It is one of which no event comes that would change it.
var passing = [2]sabotage{
	{name: "an object is set back for a moment", sql: `UPDATE postern.objects SET version_at = version_at - 1
		WHERE object_id =
		(SELECT min(object_id) FROM postern.objects WHERE object_type = 'widget' AND version_final)
			AND object_type = 'widget'`},
	{name: "and forward again", sql: `UPDATE postern.objects SET version_at = version_at + 1
		WHERE object_type = 'widget' AND version_final AND version_at = 4`},
}

// passingSabotage sets an object back and forward again while deliveries come in: only who looked
// meanwhile can notice.
func passingSabotage(ctx context.Context, out io.Writer, a asked, bin string) error {
	c, err := mutantRun(ctx, a, bin, func(r *run) []fault {
		hands := &kind{name: passing[0].name, begin: func(ctx context.Context, s *site.Site, _ int) error {
			ctx, cancel := context.WithTimeout(ctx, site.OperationTimeout)
			defer cancel()
			err := passing[0].do(ctx, s)
			for err != nil && sleep(ctx, lookEvery) { // no such object yet
				err = passing[0].do(ctx, s)
			}
			return errors.Join(err, r.watcher.rounds(ctx, 2))
		}, end: func(ctx context.Context, s *site.Site, _ int) error { return passing[1].do(ctx, s) }}
		return []fault{{at: 4 * sec, kind: hands}}
	}, nil)
	if err != nil {
		return err
	}
	if err := noticed(out, passing[0].name, c, []string{wentBack}); err != nil {
		return err
	}
	if len(c.counts) > 1 {
		return fmt.Errorf("%s and forward again, and more was found than by who looked on: %w", passing[0].name,
			c.found())
	}
	return nil
}

// mutantRun is a short run with some faults; then is called before it ends, where there is one.
func mutantRun(ctx context.Context, a asked, bin string, faults func(*run) []fault,
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
	r.whole = true
	if err := r.carry(ctx, mutantLasts, a.clients, [][]fault{faults(r)}); err != nil {
		return nil, err
	}
	if c, err = r.examine(ctx, mutantSettles); err != nil || then == nil {
		return c, err
	}
	return c, then(r, c)
}

// build makes the broken daemons in dir, beside the tools, which are not broken.
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

// overlay writes the changed files and what go build must know of them.
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
		if strings.Count(string(text), e.old) != 1 {
			return "", fmt.Errorf("%s does not have this once, write the mutant anew: %s", e.file, e.old)
		}
		replace[path] = filepath.Join(dir, fmt.Sprintf("edit%d.go", i))
		if err := os.WriteFile(replace[path], []byte(strings.Replace(string(text), e.old, e.new, 1)),
			0o600); err != nil {
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
