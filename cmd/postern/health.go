package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
)

func newHealthCommand() *cobra.Command {
	var address string
	var timeout time.Duration
	var asks asking
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a daemon whether it can do its work, as a container's health check",
		Long: `Ask a daemon whether it can do its work: exit status 0 if it answers 200, else 1 and why. For containers, whose image has
neither a shell nor curl. /readyz is about its work, PostgreSQL included; /healthz only about the process.`,
		Example: `  postern health
  postern health --url http://127.0.0.1:8082/readyz     # a processor`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := url.Parse(address)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				return usagef("%q is no URL to ask: write e.g. http://%s/readyz", address, config.DefaultAdminListen)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("no answer within %s", timeout))
			defer cancel()
			if err := askHealth(ctx, u.String(), &asks); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return err
		},
	}
	asks.flags(cmd)
	cmd.Flags().StringVar(&address, "url", "http://"+config.DefaultAdminListen+"/readyz", "`address` to ask")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long the answer may take")
	return cmd
}

// askHealth is nil where the address answers 200. It asks without a proxy of the environment: the daemon is near.
func askHealth(ctx context.Context, address string, asks *asking) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	transport, err := asks.transport()
	if err != nil {
		return err
	}
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("ask %s: %w", address, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("ask %s: %s: %w", address, res.Status, err)
	}
	return fmt.Errorf("ask %s: %s: %s", address, res.Status, problemText(body))
}
