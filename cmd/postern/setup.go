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
			if err := writeNew(path, config.Template(), force); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "Wrote %s. Name your database and secrets in it, then run: postern config check %s\n", path, path)
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it is there")
	return cmd
}

// writeNew makes a file that only its owner can read, since it may come to hold secrets.
func writeNew(path, text string, force bool) error {
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, mode, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: choose another name, or replace it with --force", path)
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
	cmd := &cobra.Command{Use: "config", Short: "Check a configuration", RunE: group, Args: cobra.ArbitraryArgs}
	var dev bool
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Say whether a configuration can be used, and which lines cannot",
		Long: `Check FILE as a daemon does at its start and again before it reloads its sources: syntax, values, variables, secrets (read,
never printed) and what each provider asks of its sources, that every named file can be read, and that the spool's folder outlives
the machine. All problems are told at once. Nothing is connected to. FILE may be that of --config. With --dev it is checked as postern dev does: demo secrets are allowed and database.url may be missing.`,
		Example: `  postern config check postern.yaml
  postern config check --dev try.yaml`,
		Args: c.wantFile,
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
				fmt.Fprintln(cmd.ErrOrStderr(), plainLines(err.Error())) // a line for each problem
				return errReported
			}
			sources := []string{}
			for _, e := range cfg.Endpoints() {
				sources = append(sources, e.Source.Name)
			}
			for _, warning := range slices.Concat(cfg.Warnings(), cfg.EffectWarnings()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "postern: warning: %s\n", plain(warning))
			}
			if len(sources) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "postern: warning: %s names no source, so nothing could be received: serve and every reload refuse it, dev takes its demo sources\n", plain(file))
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]any{"file": file, "ok": true, "sources": sources})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s can be used; sources: %s\n", file, orDash(strings.Join(sources, ", ")))
			return err
		},
	}
	check.Flags().BoolVar(&dev, "dev", false, "check it for postern dev: demo secrets and no database are all right")
	cmd.AddCommand(check)
	return cmd
}

// wantFile takes a configuration as argument, or as that of --config, which every other command takes.
func (c *cli) wantFile(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && c.config != "" {
		return nil
	}
	if len(args) == 1 && c.config != "" && c.config != args[0] {
		return usagef("%s takes one file, got %s and --config %s: leave one out", cmd.CommandPath(), plain(args[0]), plain(c.config))
	}
	return wantArgs("FILE")(cmd, args)
}

func newMigrateCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Bring the database's schema up to date", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(&cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that are missing",
		Long: `Apply the migrations that are missing, with database.maintenance_url (else database.url). The login must own the database
or be allowed to create schemas and roles. Any number of processes may do so at once; running daemons go on.`,
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
			if applied > 0 { // the ledger of migrations has their times; who applied them is in the audit
				if err := noteMigrations(cmd.Context(), url, applied); err != nil {
					return fmt.Errorf("the schema is up to date, and the audit does not say who did it: %w", err)
				}
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]int{"applied": applied})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s applied; the schema is up to date.\n", counted(applied, "migration"))
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

func noteMigrations(ctx context.Context, url string, applied int) error {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, Role: operatorRole, AppName: "postern operator", MaxConns: 1})
	if err != nil {
		return err
	}
	defer pool.Close()
	return admin.Note(ctx, pool, operator(), "migrate up", counted(applied, "migration"))
}

// migration is one for output.
type migration struct {
	Number    int64          `json:"number"`
	Name      string         `json:"name"`
	AppliedAt events.Instant `json:"applied_at"`
}

func printMigrations(cmd *cobra.Command, c *cli, all []postgres.Migration) error {
	out := &sink[migration]{out: cmd.OutOrStdout(), json: c.output == "json", none: "No migrations.", columns: []column[migration]{
		{"NUMBER", func(m migration) string { return strconv.FormatInt(m.Number, 10) }},
		{"NAME", func(m migration) string { return m.Name }},
		{"APPLIED", func(m migration) string {
			if m.AppliedAt.IsZero() {
				return "pending"
			}
			return m.AppliedAt.String()
		}},
	}}
	var rows []migration
	for _, m := range all {
		rows = append(rows, migration{m.Number, m.Name, events.Instant{Time: m.AppliedAt}})
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
				return printJSON(cmd.OutOrStdout(), map[string]any{"version": version, "commit": commit, "go": runtime.Version(),
					"platform": runtime.GOOS + "/" + runtime.GOARCH, "rule_version": versioning.RuleVersion})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "postern %s (commit %s, %s, %s/%s, version rule %d)\n", version, orDash(commit), runtime.Version(),
				runtime.GOOS, runtime.GOARCH, versioning.RuleVersion)
			return err
		},
	}
}
