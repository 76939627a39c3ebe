package main

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// reading are the commands that change nothing of what is stored for a person's sake: they ask, or they are programs that run, send or write a file.
const reading = `audit list|config check|conflicts list|conflicts show|dev|doctor|drift report|drift show|effects list|effects plan|effects show|events list|events show|events tail|export|health|hints list|init|migrate status|notify test|objects list|objects show
outcomes list|providers list|providers show|providers test|rebuild compare|redact list|redact pending|rejections list|rejections show|rejections verify|retention show|runs list|runs show|runs watch
schedules list|schedules show|send|serve|spool list|stream status|token list|top|verify|version`

// leaves are the commands that do something, without the program's name.
func leaves(cmd *cobra.Command) (all []string) {
	if len(cmd.Commands()) == 0 || cmd.Runnable() && fmt.Sprintf("%p", cmd.RunE) != fmt.Sprintf("%p", group) {
		all = append(all, strings.TrimPrefix(cmd.CommandPath(), "postern "))
	}
	for _, sub := range cmd.Commands() {
		all = append(all, leaves(sub)...)
	}
	return all
}

// Each command that changes something writes one row in the audit. A command that is neither here nor among those that only read fails.
func TestEveryChangingCommandIsInTheAudit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, Sources: map[string]config.InstanceSource{"stripe": {Provider: "stripe"}}})
	b.outcome(t, b.append(t, "stripe", "evt_1", "{}"), "dead")
	b.db.Exec(t, `INSERT INTO budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight) VALUES ($1, '', 1, now(), now(), 0, '{}')`, b.known.Number["stripe"])
	p := &runs.Planner{Pool: b.db.Role(t, "processor"), Jobs: admin.Jobs, Logger: slog.New(slog.DiscardHandler), Every: time.Hour}
	p.Replace([]runs.Schedule{{Name: "nightly", Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC", Overlap: runs.OverlapSkip, Missed: runs.MissedRun, Parameters: map[string]string{"source": "stripe"}}})
	if err := p.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.db.Exec(t, `INSERT INTO spools (spool, place, empty_at) VALUES ('gone', 'here:/spool', '-infinity')`)
	file := filepath.Join(t.TempDir(), "x.ndjson")
	b.run(t, "export", file).want(t, 0, "events          1\n", "")
	rejection := fmt.Sprint(b.refuse(t, 1, config.DemoStripeSecret))
	b.effects(t)
	left := map[string]bool{}
	for _, path := range leaves(newRoot()) {
		left[path] = !strings.HasPrefix(path, "help") && !strings.HasPrefix(path, "completion")
	}
	for _, path := range strings.FieldsFunc(reading, func(r rune) bool { return r == '|' || r == '\n' }) {
		if !left[path] {
			t.Errorf("there is no command %q", path)
		}
		delete(left, path)
	}
	for _, c := range []struct{ command, args string }{
		{"replay", "--mode force --yes --no-wait --reason why"},
		{"runs approve", "1 --reason why"},
		{"runs pause", "1 --reason why"},
		{"runs resume", "1 --reason why"},
		{"runs cancel", "1 --reason why"},
		{"retry", "evt_1 --yes --no-wait --reason why"},
		{"rebuild", "--source stripe --no-wait --reason why"},
		{"rebuild swap", "RUN --no-wait --yes --reason why"},
		{"rebuild discard", "RUN --yes --reason why"},
		{"reconcile", "stripe --no-wait --reason why"},
		{"hints add", "stripe customer cus_1 --reason why"},
		{"hints drop", "stripe customer cus_1 --reason why"},
		{"objects settle", "stripe customer cus_1 --yes --no-wait --reason why"},
		{"objects announce", "--yes --reason why"},
		{"schedules pause", "nightly --reason why"},
		{"schedules resume", "nightly --reason why"},
		{"schedules run", "nightly --no-wait --reason why"},
		{"retention run", "--bodies 30 --yes --no-wait --reason why"},
		{"redact", "--event evt_1 --yes --no-wait --reason why"},
		{"rejections release", rejection + " --yes --why why"},
		{"stream heal", "--no-wait --reason why"},
		{"spool forget", "gone --force --yes --reason why"},
		{"import", file + " --reason why"},
		{"effects approve", "1 --reason why"},
		{"effects reject", "2 --reason why"},
		{"effects resolve", "3 --step mail --done --reason why"},
		{"effects retry", "4 --reason why"},
		{"effects compensate", "5 --partial --reason why"},
		{"token create", "--name one --role reader --reason why"},
		{"token revoke", "one --reason why"},
	} {
		delete(left, c.command)
		b.db.Exec(t, `ALTER TABLE audit DISABLE TRIGGER ALL; DELETE FROM audit; ALTER TABLE audit ENABLE TRIGGER ALL`)
		line := strings.Fields(c.command + " " + strings.ReplaceAll(c.args, "RUN", b.db.Rows(t, `SELECT coalesce(max(run), 0)::text FROM runs`)[0]))
		if r := b.run(t, line...); r.status != 0 {
			t.Errorf("%s: %+v", line, r)
		}
		rows := b.db.Rows(t, `SELECT concat_ws(' | ', action, who, via, reason, target <> '') FROM audit`)
		if want := strings.Join([]string{c.command, operator().Name, "command", "why", "t"}, " | "); len(rows) != 1 || rows[0] != want {
			t.Errorf("%s: the audit says %q, want %q", line, rows, want)
		}
	}
	delete(left, "migrate up") // TestMigratingIsInTheAudit
	if len(left) > 0 {
		t.Errorf("these commands are neither said to read, nor is it known what the audit says of them: %v", slices.Sorted(maps.Keys(left)))
	}
}

func TestMigratingIsInTheAudit(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyDatabase(t, "")
	file := filepath.Join(t.TempDir(), "postern.yaml")
	if err := os.WriteFile(file, []byte("database: {url: '"+db.URL+"'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func() result { return execute(t.Context(), "", "--config", file, "audit", "list", "-o", "json") }
	execute(t.Context(), "", "--config", file, "migrate", "up").want(t, 0, "applied", "")
	execute(t.Context(), "", "--config", file, "migrate", "up").want(t, 0, "0 migrations applied", "")
	r := list()
	if r.status != 0 || strings.Count(r.out, `"action":"migrate up"`) != 1 || !strings.Contains(r.out, `"who":"`+operator().Name+`"`) {
		t.Errorf("%+v", r)
	}
}

func TestAuditList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "audit", "list").want(t, 0, "Nothing was changed by a person.", "")
	b.run(t, "token", "create", "--name", "one", "--role", "reader", "--reason", "for grafana").want(t, 0, "", "")
	for args, found := range map[string]bool{"": true, "--what token": true, "--what tok": false, "--what token --since 1h": true, "--until 1h": false, "--who nobody": false, "--who " + operator().Name: true} {
		r := b.run(t, append([]string{"audit", "list"}, strings.Fields(args)...)...)
		if r.status != 0 || strings.Contains(r.out, "token create  token one, reader  -    for grafana") != found {
			t.Errorf("%s: %+v", args, r)
		}
	}
	b.run(t, "audit", "list", "--since", "soon").want(t, 2, "", "an RFC 3339 time")
}
