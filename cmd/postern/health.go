package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
)

func newHealthCommand(c *cli) *cobra.Command {
	var address string
	var timeout time.Duration
	var asks asking
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a daemon whether it can do its work, as a container's health check",
		Long: `Ask a daemon whether it can do its work: exit status 0 if it answers 200, else 1 and why. For containers, whose image has
neither a shell nor curl. /readyz is about its work, PostgreSQL included; /healthz only about the process.

The daemon is that of --url, else the instance in --dir. Where --dir is not given and .postern has no instance, it is the one at
http://` + config.DefaultAdminListen + `.`,
		Example: `  postern health
  postern health --dir /tmp/second
  postern health --url http://127.0.0.1:8082/readyz     # a processor`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := c.healthAddress(&address)
			if err != nil {
				return err
			}
			u, err := url.Parse(address)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				return usagef("%q is no URL to ask: write e.g. http://%s/readyz", address, config.DefaultAdminListen)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("no answer within %s", timeout))
			defer cancel()
			if err := askHealth(ctx, u.String(), in, &asks); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return err
		},
	}
	asks.flags(cmd)
	cmd.Flags().StringVar(&address, "url", "", "`address` to ask, e.g. http://"+config.DefaultAdminListen+"/readyz")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long the answer may take")
	return cmd
}

// healthAddress completes the address where --url is not given. The instance is nil unless a folder named it.
func (c *cli) healthAddress(address *string) (*config.Instance, error) {
	if *address != "" {
		return nil, nil
	}
	*address = "http://" + config.DefaultAdminListen + "/readyz"
	if !c.byFolder() {
		return nil, nil
	}
	in, err := c.readInstance()
	if errors.Is(err, config.ErrNoInstance) && !c.dirGiven {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	*address = in.AdminURL + "/readyz"
	return in, nil
}

// askHealth is nil where the address answers 200, and the instance of a folder does, where one is given. It asks without a proxy of
// the environment: the daemon is near.
func askHealth(ctx context.Context, address string, in *config.Instance, asks *asking) error {
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
	if err := checkResponder(in, res); err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("ask %s: %s: %w", address, res.Status, err)
	}
	return fmt.Errorf("ask %s: %s: %s", address, res.Status, problemText(body))
}
