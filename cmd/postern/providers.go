package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

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
}

var listedColumns = []column[listed]{
	{"NAME", func(l listed) string { return l.Name }},
	{"SENDER", func(l listed) string { return l.Title }},
	{"SAMPLES", func(l listed) string { return fmt.Sprint(len(l.Samples)) }},
	{"DOCUMENTS", func(l listed) string { return l.Docs }},
}

func newProvidersListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the providers by the word used in configuration",
		Example: "  postern providers list",
		Args:    wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := &sink[listed]{out: cmd.OutOrStdout(), json: c.output == "json", columns: listedColumns}
			var found []listed
			for _, p := range all.All() {
				d := all.Docs(p)
				one := listed{Name: p.Name(), Title: d.Title, Samples: sampleTypes(p)}
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
