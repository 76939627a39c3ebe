package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/operations"
)

func newFindCommand(c *cli) *cobra.Command {
	return command{
		use: "find TEXT", short: "Find everything that has an id or a name",
		long: `Find everything that has exactly this id: events, objects, runs, rejections, effects,
schedules and sources. It searches all sources.`,
		example: `  postern find sub_1Postern0Team0001
  postern find "run 3"`,
		run: func(x *call) error {
			found, err := operations.Find(x.ctx, x.pool, operations.FindParams{Q: x.args[0]})
			return show(x, found, err, printFound)
		},
	}.build(c)
}

func printFound(x *call, found *operations.FindResult) error {
	if len(found.Items) == 0 {
		_, err := fmt.Fprintln(x.out, "Nothing has exactly this id.")
		return err
	}
	if found.Truncated {
		fmt.Fprintln(x.errs, "postern: there may be more than these")
	}
	return printTable(x.out, found.Items, []column[operations.Found]{
		{"KIND", func(f operations.Found) any { return f.Kind }},
		{"SOURCE", func(f operations.Found) any { return f.Source }},
		{"ACCOUNT", func(f operations.Found) any { return f.Account }},
		{"ID", func(f operations.Found) any { return f.ID }},
		{"AT", func(f operations.Found) any { return f.At }},
		{"TITLE", func(f operations.Found) any { return f.Title }},
	})
}
