package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

func newProvidersCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "providers",
		Aliases: []string{"provider"},
		Short:   "List and describe providers, and test a captured delivery",
		RunE:    showHelpOrError,
		Args:    cobra.ArbitraryArgs,
	}
	cmd.AddCommand(newProvidersListCommand(c), newProvidersShowCommand(c), newProviderTestCommand(c))
	return cmd
}

// providerRow is a provider in the list.
type providerRow struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Samples []string `json:"samples"`
	Docs    string   `json:"docs"`
	// Sources are the provider's sources in --config.
	Sources []providerSource `json:"sources,omitempty"`
}

// providerSource is a source of a provider.
type providerSource struct {
	Name       string `json:"name"`
	StoreToken bool   `json:"store_token"`
}

func (s providerSource) String() string {
	if s.StoreToken {
		return s.Name + " (stores the token)"
	}
	return s.Name
}

var providerColumns = []column[providerRow]{
	{"NAME", func(l providerRow) string { return l.Name }},
	{"SENDER", func(l providerRow) string { return l.Title }},
	{"SAMPLES", func(l providerRow) string { return fmt.Sprint(len(l.Samples)) }},
	{"DOCUMENTS", func(l providerRow) string { return l.Docs }},
}

var sourcesColumn = column[providerRow]{"SOURCES", func(l providerRow) string {
	var all []string
	for _, s := range l.Sources {
		all = append(all, s.String())
	}
	return strings.Join(all, ", ")
}}

// sourcesByProvider returns the sources of --config by the name of their provider, or nil without
// --config.
func (c *cli) sourcesByProvider() (map[string][]providerSource, error) {
	if c.config == "" {
		return nil, nil
	}
	cfg, err := config.LoadSources(c.config)
	if err != nil {
		return nil, err
	}
	found := map[string][]providerSource{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Sources)) {
		s := cfg.Sources[name]
		found[s.Provider] = append(found[s.Provider], providerSource{name, s.StoreToken})
	}
	return found, nil
}

func newProvidersListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the providers with the names used in the configuration",
		Long: `List the providers with the names used in the configuration. With --config FILE the
list shows the sources of each provider, and marks those that store the sender's secret token in
clear text (store_token).`,
		Example: `  postern providers list
  postern providers list --config postern.yaml`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources, err := c.sourcesByProvider()
			if err != nil {
				return err
			}
			out := &listPrinter[providerRow]{out: cmd.OutOrStdout(), json: c.output == "json", columns: providerColumns}
			if sources != nil {
				out.columns = append(slices.Clone(providerColumns), sourcesColumn)
			}
			var found []providerRow
			for _, p := range all.All() {
				d := all.Docs(p)
				one := providerRow{Name: p.Name(), Title: d.Title, Samples: sampleTypes(p), Sources: sources[p.Name()]}
				if len(d.Links) > 0 {
					one.Docs = d.Links[0]
				}
				found = append(found, one)
			}
			return errors.Join(out.add(found), out.end())
		},
	}
}

func newProvidersShowCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show how deliveries of a provider are verified and read",
		Long: `Describe a provider: where to find its secret, how a delivery is verified, where the
event id is, what is mirrored, what its documents do not confirm, and the samples of postern send.
docs/providers.md has the same.`,
		Example:           "  postern providers show slack",
		Args:              wantArgs("NAME"),
		ValidArgsFunction: completeProvider,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findProvider(args[0])
			if err != nil {
				return err
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), struct {
					Name    string        `json:"name"`
					Docs    provider.Docs `json:"docs"`
					Headers []string      `json:"headers"`
					Samples []string      `json:"samples"`
				}{p.Name(), all.Docs(p), p.Headers(), sampleTypes(p)})
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), all.Describe(p))
			return err
		},
	}
}

func completeProvider(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return providerNames(), cobra.ShellCompDirectiveNoFileComp
}
