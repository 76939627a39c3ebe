package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/terminal"
	"github.com/postern-gateway/postern/internal/testkit"
)

// reading are the commands that change no stored data: they only read, or they run, send or write a
// file.
const reading = `audit list|config check|conflicts list|conflicts show|dev|doctor|drift report|drift show
effects list|effects backtest|effects show|events list|events show|events tail|export|feed list|find|health
refetches list|init|migrate status|notify test|objects history|objects list|objects show|outcomes failures
outcomes list|providers list|providers show|providers test
rebuild compare|redact list|redact pending|rejections list|rejections show|rejections verify|retention show
runs list|runs show|runs watch|schedules list|schedules show|send|serve|spool list|stream status|token list|top
verify|version|views list`

// leafCommands returns the commands without subcommands, without the program's name.
func leafCommands(cmd *cobra.Command) (all []string) {
	if len(cmd.Commands()) == 0 || cmd.Runnable() && fmt.Sprintf("%p", cmd.RunE) != fmt.Sprintf("%p", showHelpOrError) {
		all = append(all, strings.TrimPrefix(cmd.CommandPath(), "postern "))
	}
	for _, sub := range cmd.Commands() {
		all = append(all, leafCommands(sub)...)
	}
	return all
}

// Each command that changes data writes one row to the audit trail. The test fails for a command
// that is neither in this list nor in reading.
func TestCommands_everyChange_isInTheAudit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.writeStripe(t)
	event := b.append(t, "stripe", "evt_1", "{}")
	b.outcome(t, event, "dead")
	b.insertObject(t, "stripe", "", event)
	b.db.Exec(t, `INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
		VALUES ($1, '', 1, now(), now(), 0, '{}')`, b.known.Number["stripe"])
	p := &runs.Planner{Pool: b.db.Role(t, "processor"), Jobs: operations.Jobs, Logger: slog.New(slog.DiscardHandler),
		Interval: time.Hour}
	p.Replace([]runs.Schedule{{Name: "nightly", Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC",
		Overlap: runs.OverlapSkip, Missed: runs.MissedRun, Parameters: map[string]string{"source": "stripe"}}})
	testkit.Must(t, p.Tick(t.Context()))
	b.db.Exec(t, `INSERT INTO spools (spool, location, drained_at) VALUES ('gone', 'here:/spool', '-infinity')`)
	file := filepath.Join(t.TempDir(), "x.ndjson")
	b.run(t, "export", file).want(t, 0, "events          1\n", "")
	rejection := fmt.Sprint(b.insertRejection(t, 1, config.DemoStripeSecret))
	b.effects(t)
	remaining := map[string]bool{}
	for _, path := range leafCommands(newRootCommand()) {
		remaining[path] = !strings.HasPrefix(path, "help") && !strings.HasPrefix(path, "completion")
	}
	for _, path := range strings.FieldsFunc(reading, func(r rune) bool { return r == '|' || r == '\n' }) {
		if !remaining[path] {
			t.Errorf("there is no command %q", path)
		}
		delete(remaining, path)
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
		{"refetches add", "stripe customer cus_1 --reason why"},
		{"refetches cancel", "stripe customer cus_1 --reason why"},
		{"objects overwrite", "stripe customer cus_1 --yes --no-wait --reason why"},
		{"objects announce", "--yes --reason why"},
		{"schedules pause", "nightly --reason why"},
		{"schedules resume", "nightly --reason why"},
		{"schedules run", "nightly --no-wait --reason why"},
		{"retention run", "--bodies 30 --yes --no-wait --reason why"},
		{"redact", "--event evt_1 --yes --no-wait --reason why"},
		{"rejections reprocess", rejection + " --yes --reason why"},
		{"stream republish", "--no-wait --reason why"},
		{"feed set", "shop --after latest --stalls-after 15m --reason why"},
		{"feed remove", "shop --reason why"},
		{"feed new-epoch", "--yes --reason why"},
		{"spool remove", "gone --force --yes --reason why"},
		{"import", file + " --reason why"},
		{"effects approve", "1 --reason why"},
		{"effects reject", "2 --reason why"},
		{"effects resolve", "3 --step mail --done --reason why"},
		{"effects retry", "4 --reason why"},
		{"effects compensate", "5 --partial --reason why"},
		{"token create", "--name one --role reader --reason why"},
		{"token revoke", "one --reason why"},
		{"views create", "stripe --reason why"},
		{"views drop", "stripe --yes --reason why"},
	} {
		delete(remaining, c.command)
		b.db.Exec(t, `ALTER TABLE audit DISABLE TRIGGER ALL; DELETE FROM audit; ALTER TABLE audit ENABLE TRIGGER ALL`)
		line := strings.Fields(c.command + " " + strings.ReplaceAll(c.args, "RUN",
			b.db.QueryStrings(t, `SELECT coalesce(max(run), 0)::text FROM runs`)[0]))
		if r := b.run(t, line...); r.status != 0 {
			t.Errorf("%s: %+v", line, r)
		}
		rows := b.db.QueryStrings(t, `SELECT concat_ws(' | ', action, actor, via, reason, target <> '') FROM audit`)
		if want := strings.Join([]string{c.command, operator().Name, "command", "why", "t"}, " | "); len(rows) != 1 ||
			rows[0] != want {
			t.Errorf("%s: the audit says %q, want %q", line, rows, want)
		}
	}
	delete(remaining, "migrate up")   // TestMigrateUp_newMigrations_areInTheAudit
	delete(remaining, "views update") // TestUpdate_newFields_keepWhatExists of internal/views
	if len(remaining) > 0 {
		t.Errorf("these commands are neither in reading nor in the list of changing commands: %v",
			slices.Sorted(maps.Keys(remaining)))
	}
}

func TestMigrateUp_newMigrations_areInTheAudit(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyDatabase(t, "")
	file := writeFile(t, "postern.yaml", "database: {url: '"+db.URL+"'}\n")
	list := func() result { return execute(t.Context(), "", "--config", file, "audit", "list", "-o", "json") }
	execute(t.Context(), "", "--config", file, "migrate", "up").want(t, 0, "applied", "")
	execute(t.Context(), "", "--config", file, "migrate", "up").want(t, 0, "0 migrations applied", "")
	r := list()
	if r.status != 0 || strings.Count(r.out, `"action":"migrate up"`) != 1 ||
		!strings.Contains(r.out, `"actor":"`+operator().Name+`"`) {
		t.Errorf("%+v", r)
	}
}

func TestAuditList_filtersEntries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "audit list", 0, "No changes by operators.", "")
	b.want(t, "token create --name one --role reader --reason 'for grafana'", 0, "", "")
	for args, found := range map[string]bool{"": true, "--action token": true, "--action tok": false,
		"--action token --since 1h": true, "--until 1h": false, "--actor nobody": false,
		"--actor " + operator().Name: true} {
		r := b.run(t, append([]string{"audit", "list"}, strings.Fields(args)...)...)
		if r.status != 0 || strings.Contains(r.out, "token create  token one, reader  -    for grafana") != found {
			t.Errorf("%s: %+v", args, r)
		}
	}
	b.want(t, "audit list --since soon", 2, "", "an RFC 3339 time")
}

// typed are the command lines in a page: lines of their own, and text in backquotes.
var typed = regexp.MustCompile("(?m)^ *(?:\\$ )?postern ([a-z].*)$|`postern ([a-z][^`]*)`")

// The commands and flags in the documents exist.
func TestDocs_commandsInPages_exist(t *testing.T) {
	t.Parallel()
	pages := []string{"../../README.md", "../../SECURITY.md", "../../deploy/README.md"}
	for _, folder := range []string{"tutorial", "how-to", "explanation", "reference"} {
		found, err := filepath.Glob("../../docs/" + folder + "/*.md")
		testkit.Must(t, err)
		pages = append(pages, found...)
	}
	tried := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		testkit.Must(t, err)
		lines := typed.FindAllStringSubmatch(string(text), -1)
		tried += len(lines)
		for _, line := range lines {
			words := strings.Fields(line[1] + line[2])
			cmd, rest, err := newRootCommand().Find(words)
			if err != nil || !cmd.HasParent() || cmd.HasSubCommands() && len(rest) > 0 &&
				!strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: %s: there is no such command: %v", page, words, err)
				continue
			}
			for _, word := range words {
				name, flag := strings.CutPrefix(strings.TrimRight(word, ",;.)"), "--")
				if name, _, _ = strings.Cut(name, "="); word == "#" || strings.HasPrefix(word, "|") {
					break
				}
				if flag && name != "" && cmd.Flag(name) == nil && cmd.InheritedFlags().Lookup(name) == nil &&
					name != "help" {
					t.Errorf("%s: %s: %s has no flag %s", page, words, cmd.CommandPath(), name)
				}
			}
		}
	}
	if tried < 200 {
		t.Errorf("the pages have %d commands", tried)
	}
}

// The help of each command ends with a page of the documents.
func TestHelp_commands_namePages(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		_, page, found := strings.Cut(cmd.Long, "More: "+documents)
		if _, err := os.Stat("../../docs/" + page); !found || err != nil {
			if cmd.Name() != "version" {
				t.Errorf("%s: the page is %q: %v", cmd.CommandPath(), page, err)
			}
		}
	}
	walk(newRootCommand())
}

// usualArgs are arguments with which a command reaches the database.
var usualArgs = map[string]string{"SOURCE": "stripe", "TYPE": "customer", "ID": "1", "RUN": "1", "NAME": "stripe",
	"PROVIDER": "stripe", "EVENT": "evt_1", "FILE": "/none/none"}

// mayTake ends a command that has accepted the value and waits for a processor.
const mayTake = 10 * time.Second

// The test tries all commands, their arguments and flags.
func TestCommands_invalidUTF8_isExplained(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", `{}`)
	tried := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		// These run until they are interrupted, or write a file.
		if cmd.HasSubCommands() || slices.Contains([]string{"dev", "serve", "tail", "top", "init"}, cmd.Name()) {
			return
		}
		for _, line := range hostileLines(cmd) {
			if tried++; testing.Short() && tried%3 > 0 { // commands share the code that reads parameters
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), mayTake)
			r := execute(ctx, "", append([]string{"--dir", b.dir}, line...)...)
			if strings.Contains(r.errs, "SQLSTATE") || ctx.Err() != nil {
				t.Errorf("%q: %d %s", line, r.status, r.errs)
			}
			cancel()
		}
	}
	walk(newRootCommand())
	if tried < 200 {
		t.Errorf("only %d command lines: a command may be missing", tried)
	}
}

// hostileLines returns command lines with one argument or flag that is not UTF-8. File names may be
// invalid UTF-8.
func hostileLines(cmd *cobra.Command) (lines [][]string) {
	line := strings.Fields(cmd.CommandPath())[1:]
	first := len(line)
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		line = append(line, usualArgs[strings.Trim(word, "[].")])
	}
	for i := first; i < len(line); i++ {
		if line[i] == usualArgs["FILE"] {
			continue
		}
		bad := slices.Clone(line)
		bad[i] = "\xff"
		lines = append(lines, bad)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "string" {
			lines = append(lines, append(slices.Clone(line), "--"+f.Name, "\xff"))
		}
	})
	return lines
}

// controlSequence has control characters that must not reach a terminal from stored data.
const controlSequence = "\x1b\a\r\x7f\u0080\u009b\u009f\u061c\u200e\u202e\u2066"

func TestTerminal_storedControlCharacters_areEscaped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inJSON := strings.NewReplacer("\x1b", `\u001b`, "\a", `\u0007`, "\r", `\u000d`).Replace(controlSequence)
	body := fmt.Sprintf(`{"id": "evt_1", "%s": "%s"}`+"\r\n\x1b[2J", inJSON, inJSON)
	id := fmt.Sprint(b.append(t, "stripe", "evt_1"+controlSequence, body))
	b.append(t, "stripe", "evt_1"+controlSequence, `{}`)
	for _, args := range [][]string{
		{"events", "list"}, {"events", "list", "-o", "json"},
		{"events", "show", id}, {"events", "show", id, "-o", "json"}, {"events", "show", id, "--raw"},
		{"conflicts", "list"}, {"conflicts", "list", "-o", "json"},
		{"conflicts", "show", "1"}, {"conflicts", "show", "1", "-o", "json"},
		{"events", "show", "none" + controlSequence}, {"export", "-", "-o", "json"}, {"bogus" + controlSequence},
	} {
		piped := b.run(t, args...)
		var out, errs bytes.Buffer
		line := append([]string{"--dir", b.dir}, args...)
		status := run(t.Context(), line, strings.NewReader(""), terminal.New(&out), terminal.New(&errs))
		if got := out.String() + errs.String(); status != piped.status || len(got) == 0 ||
			strings.ContainsAny(got, controlSequence) {
			t.Errorf("%q: status %d, %q", args, status, got)
		}
		switch {
		case slices.Contains(args, "--raw"):
			if piped.out != body {
				t.Errorf("%q in a pipe: %q, want %q", args, piped.out, body)
			}
		case slices.Contains(args, "json"):
			got, want := jsonOf(t, out.String()), jsonOf(t, piped.out)
			if !strings.ContainsAny(piped.out, controlSequence) || !reflect.DeepEqual(got, want) {
				t.Errorf("%q: another value\n%s\nin a pipe\n%s", args, out.String(), piped.out)
			}
		}
	}
}

// jsonOf reads all JSON values of a text.
func jsonOf(t *testing.T, text string) (all []any) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		all = append(all, v)
	}
}

// linked is the variable that a build sets, by package and name, and its value.
var linked = regexp.MustCompile(`-X github\.com/postern-gateway/postern/(\S+)\.(\w+)=(\S*)"`)

func TestMakefile_programs_nameCommitWhereGitAnswers(t *testing.T) {
	t.Parallel()
	if _, err := os.ReadFile("../../Makefile"); err != nil { // so that a cached test result is not used after a change
		t.Fatal(err)
	}
	for git, commit := range map[string]string{"echo 0123456789abcdef-dirty": "0123456789abcdef-dirty",
		"echo dubious ownership >&2; exit 128": ""} {
		dir := t.TempDir()
		program := []byte("#!/bin/sh\n" + git + "\n")
		if err := os.WriteFile(filepath.Join(dir, "git"), program, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "make", "--dry-run", "--no-print-directory", "-C", "../..", "build",
			"dev")
		cmd.Env = append(serveEnvironment(), "PATH="+dir+":"+os.Getenv("PATH"), "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		set := linked.FindAllStringSubmatch(string(out), -1)
		if len(set) != 2 || strings.Count(string(out), "go build -buildvcs=false ") != 2 {
			t.Fatalf("build and dev do not both set the commit alone: %s", out)
		}
		for _, variable := range set {
			source, err := os.ReadFile(filepath.Join("../..", variable[1], "version.go"))
			if err != nil || !strings.Contains(string(source), "\nvar "+variable[2]+" string\n") ||
				variable[3] != commit {
				t.Errorf("git says %q: %v is set: %v", git, variable[1:], err)
			}
		}
		printed, built := strings.Index(string(out), "about two minutes the first time"),
			strings.Index(string(out), "-o bin/dev/postern ")
		if printed < 0 || printed > built {
			t.Errorf("make dev does not say how long it builds before it does: %s", out)
		}
	}
}
