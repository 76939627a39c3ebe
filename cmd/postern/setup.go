package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/telemetry"
	"github.com/postern-gateway/postern/internal/versioning"
)

func newInitCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented configuration to start from",
		Long:  "Write a commented configuration to FILE (default postern.yaml), or to standard output where FILE is -.",
		Example: `  postern init
  postern init /etc/postern/postern.yaml`,
		Args: wantArgs("[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "postern.yaml"
			if len(args) > 0 {
				path = args[0]
			}
			if path == "-" {
				_, err := fmt.Fprint(cmd.OutOrStdout(), config.Template())
				return err
			}
			if err := writeNewFile(path, config.Template(), force); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "Wrote %s. Set your database and secrets in it, then run: "+
				"postern config check %s\n", path, path)
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	return cmd
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
	cmd := &cobra.Command{Use: "config", Short: "Check a configuration", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	var dev bool
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Check whether a configuration is valid, and report invalid lines",
		Long: `Check FILE like a daemon at its start and before each reload: syntax, values,
variables, secrets (never printed), the requirements of each provider, that all named files can be
read, and that the spool's folder is durable. All problems are reported at once. No connection is
opened. FILE may be that of --config. With --dev it is checked like postern dev: demo secrets are
allowed and database.url may be missing.`,
		Example: `  postern config check postern.yaml
  postern config check --dev try.yaml`,
		Args: c.configFileArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			file := c.config
			if len(args) > 0 {
				file = args[0]
			}
			load := config.Load
			if dev {
				load = config.LoadDev
			}
			cfg, err := load(file)
			if err == nil {
				err = app.CheckSchedules(cfg)
			}
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), escapeControlLines(err.Error())) // one line for each problem
				return errReported
			}
			sources := []string{}
			for _, e := range cfg.Endpoints() {
				sources = append(sources, e.Source.Name)
			}
			for _, warning := range slices.Concat(cfg.Warnings(), cfg.EffectWarnings()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "postern: warning: %s\n", escapeControl(warning))
			}
			if len(sources) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "postern: warning: %s names no source, so nothing can be received: "+
					"serve and every reload reject it, dev uses its demo sources\n", escapeControl(file))
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]any{"file": file, "ok": true, "sources": sources})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid; sources: %s\n", file,
				orDash(strings.Join(sources, ", ")))
			return err
		},
	}
	check.Flags().BoolVar(&dev, "dev", false,
		"check it for postern dev: demo secrets and a missing database are allowed")
	cmd.AddCommand(check)
	return cmd
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
	return wantArgs("FILE")(cmd, args)
}

func newMigrateCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Apply and list migrations of the database's schema",
		RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(&cobra.Command{
		Use:   "up",
		Short: "Apply the missing migrations",
		Long: `Apply the missing migrations with database.maintenance_url (else database.url). The
login must own the database or be allowed to create schemas and roles. Several processes may do so
at once; running daemons continue.`,
		Example: "  postern migrate up --config postern.yaml",
		Args:    wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, err := c.maintenanceURL(cmd.Context())
			if err != nil {
				return err
			}
			applied, err := postgres.Migrate(cmd.Context(), url)
			if err != nil {
				return err
			}
			if applied > 0 { // The table of migrations has their times; the audit trail says who applied them.
				if err := recordMigrations(cmd.Context(), url, applied); err != nil {
					return fmt.Errorf("the schema is up to date, but the audit trail does not say who applied it: %w",
						err)
				}
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]int{"applied": applied})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s applied; the schema is up to date.\n",
				countOf(applied, "migration"))
			return err
		},
	}, &cobra.Command{
		Use:     "status",
		Short:   "List the migrations and when each was applied",
		Example: "  postern migrate status",
		Args:    wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, err := c.maintenanceURL(cmd.Context())
			if err != nil {
				return err
			}
			all, err := postgres.MigrationStatus(cmd.Context(), url)
			if err != nil {
				return err
			}
			return printMigrations(cmd, c, all)
		},
	})
	return cmd
}

func recordMigrations(ctx context.Context, url string, applied int) error {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, Role: operatorRole, AppName: "postern operator",
		MaxConns: 1})
	if err != nil {
		return err
	}
	defer pool.Close()
	return admin.RecordAction(ctx, pool, operator(), "migrate up", countOf(applied, "migration"))
}

// migrationRow is a migration in the output.
type migrationRow struct {
	Number    int64          `json:"number"`
	Name      string         `json:"name"`
	AppliedAt events.Instant `json:"applied_at"`
}

func printMigrations(cmd *cobra.Command, c *cli, all []postgres.Migration) error {
	out := &listPrinter[migrationRow]{out: cmd.OutOrStdout(), json: c.output == "json", emptyText: "No migrations.",
		columns: []column[migrationRow]{
			{"NUMBER", func(m migrationRow) string { return strconv.FormatInt(m.Number, 10) }},
			{"NAME", func(m migrationRow) string { return m.Name }},
			{"APPLIED", func(m migrationRow) string {
				if m.AppliedAt.IsZero() {
					return "pending"
				}
				return m.AppliedAt.String()
			}},
		}}
	var rows []migrationRow
	for _, m := range all {
		rows = append(rows, migrationRow{m.Number, m.Name, events.Instant{Time: m.AppliedAt}})
	}
	if err := out.add(rows); err != nil {
		return err
	}
	return out.end()
}

func newVersionCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  postern version -o json",
		Args:    wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			version, commit := telemetry.Version()
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]any{"version": version, "commit": commit,
					"go":       runtime.Version(),
					"platform": runtime.GOOS + "/" + runtime.GOARCH, "rule_version": versioning.RuleVersion})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "postern %s (commit %s, %s, %s/%s, version rule %d)\n", version,
				orDash(commit), runtime.Version(), runtime.GOOS, runtime.GOARCH, versioning.RuleVersion)
			return err
		},
	}
}
