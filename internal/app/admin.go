package app

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/netutil"

	"github.com/postern-gateway/postern/internal/access"
	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	adminTimeout   = 30 * time.Second
	// maxCallers bounds the connections to the admin address, at which strangers may knock.
	maxCallers = 1024
)

// addAdmin wires the operator's listener: health, metrics and the JSON interface, as the operator's role.
func (a *App) addAdmin(ctx context.Context) error {
	pool, err := a.pool(ctx, string(a.Config.Database.URL), "postern_operator", 4)
	if err != nil {
		return err
	}
	if a.admin, err = a.listen(ctx, "admin", a.Config.Admin.ListenOr(a.AdminListen)); err != nil {
		return err
	}
	address := a.AdminAddr() // what a name stands for is known now
	require := a.Config.Admin.RequireTokens || !config.Loopback(address)
	if require { // before anybody is listened to
		if err := a.checkTokens(ctx, pool, address); err != nil {
			return err
		}
	}
	refusals, err := admin.NewRefusals(a.metrics)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, ReadTimeout: adminTimeout, WriteTimeout: 2 * adminTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		Handler: admin.New(admin.Options{Pool: pool, Ready: a.Ready, Metrics: a.metrics.Handler(), Stream: a.stream, Retention: retentionPolicy(a.Config), Logger: a.Logger,
			Refusals: refusals, Tokens: &access.Keeper{DB: pool, Logger: a.Logger}, RequireTokens: require, OpenMetrics: a.Config.Admin.OpenMetrics,
			Endpoints: func() []config.Endpoint { return a.inUse.Load().Endpoints() }, Rule: func(name string) (*rules.Rule, error) { return a.inUse.Load().Rule(name) }})}
	if a.Config.Admin.TLS.Cert != "" {
		if server.TLSConfig, err = adminTLS(a.Config.Admin.TLS, a.Logger); err != nil {
			return err
		}
	} else if !config.Loopback(address) {
		a.Logger.Warn("the admin address is beyond loopback and has no certificate: whoever overhears a token can use it; set admin.tls, or let something before it end TLS", "admin", address)
	}
	a.loop("idempotency keys", func(ctx context.Context) error { return a.sweepKeys(ctx, pool) })
	a.serve("admin", netutil.LimitListener(a.admin, maxCallers), server, "", "")
	return nil
}

const (
	// sweepKeysEvery is how often keys that are too old to count are deleted.
	sweepKeysEvery  = 10 * time.Minute
	sweepKeysWithin = 30 * time.Second
)

// sweepKeys deletes old keys of requests until ctx ends. Every process does; two at once disturb nobody.
func (a *App) sweepKeys(ctx context.Context, pool *pgxpool.Pool) error {
	tick := time.NewTicker(sweepKeysEvery)
	defer tick.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, sweepKeysWithin)
		if _, err := idempotency.Sweep(once, pool); err != nil && ctx.Err() == nil {
			a.Logger.Warn("old idempotency keys not deleted; tried again later", "error", err)
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// tokensWithin bounds the look for tokens before the process listens.
const tokensWithin = 10 * time.Second

// checkTokens refuses an address at which nobody could ask anything. Where PostgreSQL is away, and the process may start without it, everybody is refused until it is back.
func (a *App) checkTokens(ctx context.Context, pool *pgxpool.Pool, address string) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "count tokens", tokensWithin)
	defer cancel()
	n, err := access.InForce(ctx, pool)
	switch {
	case a.spooled && postgres.IsUnavailable(err):
		a.Logger.Warn("tokens not counted; until postgresql answers the admin address refuses everybody", "admin", address, "error", err)
		return nil
	case err != nil:
		return err
	case n > 0:
		return nil
	case config.Loopback(address):
		return fmt.Errorf("admin.require_tokens is on, and no token is in force: make one with `postern token create --role reader --name NAME`, or leave the setting out")
	}
	return fmt.Errorf("the admin address %s can be reached from other machines, and no token is in force: make one with `postern token create --role reader --name NAME`, or listen on loopback, e.g. %s", address, config.DefaultAdminListen)
}

// Ready says what keeps this process from its work; nil if nothing does.
func (a *App) Ready(ctx context.Context) error {
	for _, ready := range a.ready {
		if err := ready(ctx); err != nil {
			return err
		}
	}
	return nil
}
