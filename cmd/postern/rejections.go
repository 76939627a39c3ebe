package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
)

// again is what `postern rejections verify` and `release` share: which rejections, and how sources are configured now.
type again struct {
	pool      *pgxpool.Pool
	endpoints map[string]ingest.Endpoint
	ids       []int64
}

func newRejectionsVerifyCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [ID...]",
		Short: "Verify refused deliveries again, with the secrets of now",
		Long: `Verify refused deliveries again, as of their own time of receipt, with the secrets and settings that --config FILE has now: the given ones, or those
that the flags choose. Nothing is written; postern rejections release puts what is proven into the log.`,
		Example: `  postern rejections verify 17 --config postern.yaml
  postern rejections verify --source stripe --reason wrong_signature --since 1d --config postern.yaml`,
		Args: cobra.ArbitraryArgs,
	}
	filterFlags(cmd, admin.RejectionParams)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			a, err := newAgain(cmd.Context(), c, pool, args, filterValues(cmd, admin.RejectionParams))
			if err != nil {
				return err
			}
			out := &sink[ingest.Checked]{out: cmd.OutOrStdout(), json: c.output == "json", columns: checkedColumns, none: "No rejections."}
			if err := a.each(cmd.Context(), func(c ingest.Checked) error { return out.add([]ingest.Checked{c}) }); err != nil {
				return err
			}
			return out.end()
		})
	}
	return cmd
}

var checkedColumns = []column[ingest.Checked]{
	{"ID", func(c ingest.Checked) string { return strconv.FormatInt(c.ID, 10) }},
	{"RECEIVED", func(c ingest.Checked) string { return c.ReceivedAt.String() }},
	{"SOURCE", func(c ingest.Checked) string { return c.Source }},
	{"PROVEN", func(c ingest.Checked) string { return strconv.FormatBool(c.Proven) }},
	{"EVENTS", func(c ingest.Checked) string { return strconv.Itoa(len(c.Events)) }},
	{"NOW", func(c ingest.Checked) string { return c.Now }},
}

// newAgain finds out which rejections are meant: their ids, or a filter.
func newAgain(ctx context.Context, c *cli, pool *pgxpool.Pool, args []string, values url.Values) (*again, error) {
	a := &again{pool: pool, endpoints: map[string]ingest.Endpoint{}}
	if len(args) > 0 && len(values) > 0 {
		return nil, usagef("give ids of rejections, or flags that choose them, not both")
	}
	for _, arg := range args {
		id, err := number(arg)
		if err != nil {
			return nil, err
		}
		a.ids = append(a.ids, id)
	}
	endpoints, err := c.endpoints(config.LoadDev)
	if err != nil {
		return nil, err
	}
	known, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return nil, err
	}
	for _, e := range endpoints {
		a.endpoints[e.Source.Name] = ingest.Endpoint{Number: known.Number[e.Source.Name], Config: e.Source, Provider: e.Provider}
	}
	if len(args) == 0 {
		list := lister[ingest.Rejected]{query: admin.Rejections}
		_, err = list.pages(ctx, pool, values, 0, func(found []ingest.Rejected) error {
			for _, r := range found {
				a.ids = append(a.ids, r.ID)
			}
			return nil
		})
	}
	slices.Sort(a.ids)
	a.ids = slices.Compact(a.ids)
	return a, err
}

// each verifies one after the other. What has been dropped or released meanwhile is left out, unless it was all that was asked for.
func (a *again) each(ctx context.Context, take func(ingest.Checked) error) error {
	for _, id := range a.ids {
		if err := a.one(ctx, id, take); err != nil && (!errors.Is(err, events.ErrNotFound) || len(a.ids) == 1) {
			return err
		}
	}
	return nil
}

func (a *again) one(ctx context.Context, id int64, take func(ingest.Checked) error) error {
	r, err := ingest.ShowRejection(ctx, a.pool, id)
	if err != nil {
		return err
	}
	checked := ingest.Checked{Rejected: r.Rejected, Now: fmt.Sprintf("source %s is not in the configuration used here", r.Source), Events: []ingest.CheckedEvent{}}
	if ep, ok := a.endpoints[r.Source]; ok {
		checked = ingest.Check(ep, r)
	}
	return take(checked)
}

// releasing are the flags of `postern rejections release`.
type releasing struct {
	yes    bool
	reason string
}

func newRejectionsReleaseCommand(c *cli) *cobra.Command {
	var r releasing
	cmd := &cobra.Command{
		Use:   "release [ID...] --why TEXT",
		Short: "Put refused deliveries that are proven now into the log",
		Long: `Verify refused deliveries again, as postern rejections verify does, and put those that are proven now into the log, as the gateway would have taken
them: under their own time of receipt, each event once. Who released them and why is kept beside what proved them. A minute later the auditor has them applied. What
is not proven stays as it is. It shows first how many that is and asks.

The log is written as a gateway writes it, so the database login must be one: name a gateway's configuration with --config FILE.`,
		Example: `  postern rejections release 17 --why 'the secret was rotated' --config gateway.yaml
  postern rejections release --source stripe --reason wrong_signature --since 1d --why 'the secret was rotated' --yes --config gateway.yaml`,
		Args: cobra.ArbitraryArgs,
	}
	filterFlags(cmd, admin.RejectionParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&r.reason, "why", "", "why they may enter; kept with each event")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(r.reason) == "" {
			return usagef("say why they may enter with --why")
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			a, err := newAgain(cmd.Context(), c, pool, args, filterValues(cmd, admin.RejectionParams))
			if err != nil {
				return err
			}
			return r.run(cmd, c, a, len(args) > 0)
		})
	}
	return cmd
}

// released is what became of a rejection.
type released struct {
	ID     int64                 `json:"id"`
	Source string                `json:"source"`
	Events []ingest.CheckedEvent `json:"events"`
	// Stored are our ids of the events, in their order.
	Stored []string `json:"stored"`
	// Note says what is not as usual: the event was there already, or with other content.
	Note string `json:"note"`
}

var releasedColumns = []column[released]{
	{"REJECTION", func(r released) string { return strconv.FormatInt(r.ID, 10) }},
	{"SOURCE", func(r released) string { return r.Source }},
	{"EVENTS", func(r released) string { return strings.Join(r.Stored, ", ") }},
	{"NOTE", func(r released) string { return r.Note }},
}

// run counts, asks, and releases. Where rejections were named one by one, it is an error that one of them is left.
func (r *releasing) run(cmd *cobra.Command, c *cli, a *again, named bool) error {
	ctx, proven, evs := cmd.Context(), 0, 0
	err := a.each(ctx, func(c ingest.Checked) error {
		if c.Proven {
			proven, evs = proven+1, evs+len(c.Events)
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "rejection %d stays: %s\n", c.ID, plain(c.Now))
		}
		return nil
	})
	if err != nil {
		return err
	}
	left := len(a.ids) - proven
	fmt.Fprintf(cmd.ErrOrStderr(), "%d of %s proven now, with %s\n", proven, counted(len(a.ids), "rejection"), counted(evs, "event"))
	if proven > 0 {
		if ok, err := confirm(cmd, "Release them into the log?", r.yes); err != nil || !ok {
			return err
		}
		if err := r.release(cmd, c, a); err != nil {
			return err
		}
	}
	if named && left > 0 {
		return fmt.Errorf("%s not released", counted(left, "rejection"))
	}
	return nil
}

func (r *releasing) release(cmd *cobra.Command, c *cli, a *again) error {
	ctx := cmd.Context()
	log, err := c.connectAs(ctx, cmd.ErrOrStderr(), gatewayRole, 2)
	if err != nil {
		return fmt.Errorf("%w; what is released is written as a gateway writes: name its configuration with --config FILE", err)
	}
	defer log.Close()
	out := &sink[released]{out: cmd.OutOrStdout(), json: c.output == "json", columns: releasedColumns, none: "Nothing was released."}
	err = a.each(ctx, func(c ingest.Checked) error {
		if !c.Proven {
			return nil
		}
		receipts, err := ingest.Release(ctx, log, &c, operator().Person, r.reason)
		if err != nil {
			return err
		}
		return out.add([]released{became(&c, receipts)})
	})
	return errors.Join(err, out.end())
}

func became(c *ingest.Checked, receipts []events.Receipt) released {
	r := released{ID: c.ID, Source: c.Source, Events: c.Events, Stored: []string{}}
	for _, receipt := range receipts {
		r.Stored = append(r.Stored, strconv.FormatInt(receipt.ID, 10))
		switch {
		case receipt.Conflict:
			r.Note = "the log has the key with other content: kept as a conflict"
		case receipt.Duplicate && r.Note == "":
			r.Note = "was in the log already"
		}
	}
	return r
}
