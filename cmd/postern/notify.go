package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/notify"
)

func newNotifyCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "notify", Short: "Test the recipients of alerts"}
	cmd.AddCommand(&cobra.Command{
		Use:   "test NAME",
		Short: "Send a test alert to one recipient of the configuration",
		Long: `Send a test alert to one recipient in notify of the configuration, in the same way as
real alerts: signed or by mail, from this machine. Nothing is recorded. The command reports whether
the recipient accepted it.`,
		Example: "  postern notify test oncall --config /etc/postern/postern.yaml",
		Args:    wantArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.LoadDev(c.config)
			if err != nil {
				return err
			}
			var names []string
			for _, r := range notify.Recipients(cfg) {
				names = append(names, r.Name)
				if r.Name != args[0] {
					continue
				}
				if err := notify.Test(cmd.Context(), &r, time.Now()); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "Sent to %s.\n", r.To)
				return nil
			}
			slices.Sort(names)
			return usagef("there is no notify.%s in this configuration, which has: %s; name its file with "+
				"--config", args[0], strings.Join(names, ", "))
		},
	})
	return cmd
}
