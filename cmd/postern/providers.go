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
		Short:   "List the providers, show what one means, test a captured delivery",
		RunE:    group,
		Args:    cobra.ArbitraryArgs,
	}
	cmd.AddCommand(newProvidersListCommand(c), newProvidersShowCommand(c), newProviderTestCommand(c))
	return cmd
}

// listed is a provider in a list.
type listed struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Samples []string `json:"samples"`
	Docs    string   `json:"docs"`
	// Sources are those of --config.
	Sources []listedSource `json:"sources,omitempty"`
}

// listedSource is a source beside its provider.
type listedSource struct {
	Name       string `json:"name"`
	StoreToken bool   `json:"store_token"`
}

func (s listedSource) String() string {
	if s.StoreToken {
		return s.Name + " (stores its token)"
	}
	return s.Name
}

var listedColumns = []column[listed]{
	{"NAME", func(l listed) string { return l.Name }},
	{"SENDER", func(l listed) string { return l.Title }},
	{"SAMPLES", func(l listed) string { return fmt.Sprint(len(l.Samples)) }},
	{"DOCUMENTS", func(l listed) string { return l.Docs }},
}

var sourcesColumn = column[listed]{"SOURCES", func(l listed) string {
	var all []string
	for _, s := range l.Sources {
		all = append(all, s.String())
	}
	return strings.Join(all, ", ")
}}

// sourcesByProvider are the sources of --config, by the name of their provider; nil without it.
func (c *cli) sourcesByProvider() (map[string][]listedSource, error) {
	if c.config == "" {
		return nil, nil
	}
	cfg, err := config.LoadSources(c.config)
	if err != nil {
		return nil, err
	}
	found := map[string][]listedSource{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Sources)) {
		s := cfg.Sources[name]
		found[s.Provider] = append(found[s.Provider], listedSource{name, s.StoreToken})
	}
	return found, nil
}

func newProvidersListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the providers by the word used in configuration",
		Long: `List the providers by the word used in configuration. With --config FILE the list shows the sources of
each provider, and marks those that store in clear the token by which their sender proves itself (store_token).`,
		Example: `  postern providers list
  postern providers list --config postern.yaml`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources, err := c.sourcesByProvider()
			if err != nil {
				return err
			}
			out := &sink[listed]{out: cmd.OutOrStdout(), json: c.output == "json", columns: listedColumns}
			if sources != nil {
				out.columns = append(slices.Clone(listedColumns), sourcesColumn)
			}
			var found []listed
			for _, p := range all.All() {
				d := all.Docs(p)
				one := listed{Name: p.Name(), Title: d.Title, Samples: sampleTypes(p), Sources: sources[p.Name()]}
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
		Short: "Show how a provider's deliveries are proven, named and read",
		Long: `Show what a provider means: where its secret is found, what proves a delivery, what names an event, what is mirrored,
what no document confirms, and the samples that postern send knows. docs/providers.md has the same.`,
		Example:           "  postern providers show slack",
		Args:              wantArgs("NAME"),
		ValidArgsFunction: completeProvider,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := namedProvider(args[0])
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
	return providers(), cobra.ShellCompDirectiveNoFileComp
}
