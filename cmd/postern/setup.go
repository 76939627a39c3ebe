package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/telemetry"
	"github.com/postern-gateway/postern/internal/versioning"
)

func newInitCommand(c *cli) *cobra.Command {
	return command{
		use: "init [FILE]", short: "Write a commented configuration to start from", offline: true,
		long: "Write a commented configuration to FILE (default postern.yaml), or to standard output where FILE is -.",
		example: `  postern init
  postern init /etc/postern/postern.yaml`,
		flags: []flag{{"force", "replace FILE if it exists", false}},
		run: func(x *call) error {
			path := cmp.Or(strings.Join(x.args, ""), "postern.yaml")
			if path == "-" {
				_, err := fmt.Fprint(x.out, config.Template())
				return err
			}
			if err := writeNewFile(path, config.Template(), x.has("force")); err != nil {
				return err
			}
			_, err := fmt.Fprintf(x.out, "Wrote %s. Set your database and secrets in it, then run: postern config "+
				"check %s\n", path, path)
			return err
		},
	}.build(c)
}

// writeNewFile creates a file that only its owner can read, because it may later hold secrets.
func writeNewFile(path, text string, force bool) error {
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, mode, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s already exists: choose another name, or replace it with --force", path)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

func newConfigCommand(c *cli) *cobra.Command {
	check := command{
		use: "check FILE", short: "Check whether a configuration is valid, and report invalid lines", offline: true,
		long: `Check FILE like a daemon at its start and before each reload: syntax, values,
variables, secrets (never printed), the requirements of each provider, that all named files can be
read, and that the spool's folder is durable. All problems are reported at once. No connection is
opened. FILE may be that of --config. With --dev it is checked like postern dev: demo secrets are
allowed and database.url may be missing.`,
		example: `  postern config check postern.yaml
  postern config check --dev try.yaml`,
		flags: []flag{{"dev", "check it for postern dev: demo secrets and a missing database are allowed", false}},
		run:   checkConfig,
	}.build(c)
	check.Args = c.configFileArg
	return group("config", "Check a configuration", check)
}

func checkConfig(x *call) error {
	file := cmp.Or(strings.Join(x.args, ""), x.config)
	load := config.Load
	if x.has("dev") {
		load = config.LoadDev
	}
	cfg, err := load(file)
	if err == nil {
		err = app.CheckSchedules(cfg)
	}
	if err != nil {
		fmt.Fprintln(x.errs, escapeControlLines(err.Error())) // one line for each problem
		return errReported
	}
	sources := []string{}
	for _, e := range cfg.Endpoints() {
		sources = append(sources, e.Source.Name)
	}
	warnings := slices.Concat(cfg.Warnings(), cfg.EffectWarnings())
	if len(sources) == 0 {
		warnings = append(warnings, file+" names no source, so nothing can be received: serve and every reload reject "+
			"it, dev uses its demo sources")
	}
	for _, warning := range warnings {
		fmt.Fprintf(x.errs, "postern: warning: %s\n", escapeControl(warning))
	}
	return x.printf(map[string]any{"file": file, "ok": true, "sources": sources}, "%s is valid; sources: %s", file,
		orDash(strings.Join(sources, ", ")))
}

// configFileArg accepts a configuration file as argument or in --config.
func (c *cli) configFileArg(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && c.config != "" {
		return nil
	}
	if len(args) == 1 && c.config != "" && c.config != args[0] {
		return usagef("%s takes one file, got %s and --config %s: omit one of them", cmd.CommandPath(),
			escapeControl(args[0]), escapeControl(c.config))
	}
	return checkArgs(cmd.Use)(cmd, args)
}

func newMigrateCommand(c *cli) *cobra.Command {
	return group("migrate", "Apply and list migrations of the database's schema", command{
		use: "up", short: "Apply the missing migrations", offline: true,
		long: `Apply the missing migrations with database.maintenance_url (else database.url). The
login must own the database or be allowed to create schemas and roles. Several processes may do so
at once; running daemons continue.`,
		example: "  postern migrate up --config postern.yaml",
		run:     migrateUp,
	}.build(c), command{
		use: "status", short: "List the migrations and when each was applied", offline: true,
		example: "  postern migrate status",
		run: func(x *call) error {
			url, err := x.maintenanceURL(x.ctx)
			if err != nil {
				return err
			}
			all, err := postgres.MigrationStatus(x.ctx, url)
			if err != nil {
				return err
			}
			var rows []migrationRow
			for _, m := range all {
				rows = append(rows, migrationRow{m.Number, m.Name, events.Instant{Time: m.AppliedAt}})
			}
			return printList(x, rows, migrationColumns, "No migrations.")
		},
	}.build(c))
}

func migrateUp(x *call) error {
	url, err := x.maintenanceURL(x.ctx)
	if err != nil {
		return err
	}
	applied, err := postgres.Migrate(x.ctx, url)
	if err != nil {
		return err
	}
	if applied > 0 { // The table of migrations has their times; the audit trail says who applied them.
		if err := recordMigrations(x.ctx, url, applied); err != nil {
			return fmt.Errorf("the schema is up to date, but the audit trail does not say who applied it: %w", err)
		}
	}
	return x.printf(map[string]int{"applied": applied}, "%s applied; the schema is up to date.",
		countOf(applied, "migration"))
}

func recordMigrations(ctx context.Context, url string, applied int) error {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, Role: operatorRole, AppName: "postern operator",
		MaxConns: 1})
	if err != nil {
		return err
	}
	defer pool.Close()
	return adminauth.WriteAudit(ctx, pool, operator().Actor, adminauth.AuditEntry{Action: "migrate up",
		Target: countOf(applied, "migration")})
}

// migrationRow is a migration in the output.
type migrationRow struct {
	Number    int64          `json:"number"`
	Name      string         `json:"name"`
	AppliedAt events.Instant `json:"applied_at"`
}

var migrationColumns = []column[migrationRow]{
	{"NUMBER", func(m migrationRow) any { return m.Number }},
	{"NAME", func(m migrationRow) any { return m.Name }},
	{"APPLIED", func(m migrationRow) any { return cmp.Or(m.AppliedAt.String(), "pending") }},
}

func newVersionCommand(c *cli) *cobra.Command {
	return command{
		use: "version", short: "Print the version of this program", example: "  postern version -o json", offline: true,
		run: func(x *call) error {
			version, commit := telemetry.Version()
			platform := runtime.GOOS + "/" + runtime.GOARCH
			return x.printf(map[string]any{"version": version, "commit": commit, "go": runtime.Version(),
				"platform": platform, "rule_version": versioning.RuleVersion},
				"postern %s (commit %s, %s, %s, version rule %d)", version, orDash(commit), runtime.Version(), platform,
				versioning.RuleVersion)
		},
	}.build(c)
}
