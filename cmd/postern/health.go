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
	var clientOptions clientFlags
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check whether a daemon can do its work, as a container's health check",
		Long: `Check whether a daemon can do its work. The exit status is 0 if it responds with 200,
else 1 with the reason. The command is for containers whose image has neither a shell nor curl.
/readyz checks all the daemon needs, including PostgreSQL; /healthz checks only the process.

The daemon is that of --url, else the instance in --dir. Without --dir, and without an instance in
.postern, it is the one at http://` + config.DefaultAdminListen + `.`,
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
				return usagef("%q is not a valid URL: use e.g. http://%s/readyz", address, config.DefaultAdminListen)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				fmt.Errorf("no response within %s", timeout))
			defer cancel()
			if err := checkHealth(ctx, u.String(), in, &clientOptions); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return err
		},
	}
	clientOptions.addTo(cmd)
	cmd.Flags().StringVar(&address, "url", "", "`address` to request, e.g. http://"+config.DefaultAdminListen+"/readyz")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "maximum time until the response")
	return cmd
}

// healthAddress fills in the address if --url is not given. The instance is nil unless a folder
// named it.
func (c *cli) healthAddress(address *string) (*config.Instance, error) {
	if *address != "" {
		return nil, nil
	}
	*address = "http://" + config.DefaultAdminListen + "/readyz"
	if !c.usesFolder() {
		return nil, nil
	}
	in, err := c.readInstanceFile()
	if errors.Is(err, config.ErrNoInstance) && !c.dirGiven {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	*address = in.AdminURL + "/readyz"
	return in, nil
}

// checkHealth returns nil if the address responds with 200. If an instance is given, the response
// must be from that instance. It connects directly, without a proxy from the environment.
func checkHealth(ctx context.Context, address string, in *config.Instance, flags *clientFlags) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("request %s: %w", address, err)
	}
	transport, err := flags.transport()
	if err != nil {
		return err
	}
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("request %s: %w", address, err)
	}
	defer res.Body.Close()
	if err := checkResponder(in, res); err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponseBytes))
	if err != nil {
		return fmt.Errorf("request %s: %s: %w", address, res.Status, err)
	}
	return fmt.Errorf("request %s: %s: %s", address, res.Status, describeProblem(body))
}
