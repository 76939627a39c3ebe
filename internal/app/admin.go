package app

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/netutil"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/console"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/telemetry"
)

const (
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	adminTimeout   = 30 * time.Second
	// maxAdminConns limits the connections to the admin address, which unauthenticated clients can
	// open.
	maxAdminConns = 1024
)

// addAdmin adds the admin listener with health, metrics and the JSON interface. It uses the
// operator role.
func (a *App) addAdmin(ctx context.Context) error {
	pool := a.adminPool
	if err := a.checkAdminPool(ctx); err != nil {
		return err
	}
	var err error
	if a.adminListener, err = a.listen(ctx, "admin", a.Config.Admin.ListenOr(a.AdminListen)); err != nil {
		return err
	}
	address := a.AdminAddr() // the bound address has an IP, so IsLoopback can check it
	// Another host name means a proxy, through which others than this machine come.
	require := a.Config.Admin.RequireTokens || !config.IsLoopback(address) || len(a.Config.Console.Hosts) > 0
	if require { // before the listener accepts connections
		if err := a.checkTokens(ctx, pool, address); err != nil {
			return err
		}
	}
	tokens := &adminauth.TokenCache{DB: pool, Logger: a.Logger}
	deniedRequests, err := admin.NewDeniedRequests(a.metrics)
	if err != nil {
		return err
	}
	follower := &operations.Follower{Pool: pool, Logger: a.Logger}
	reader := changes.NewReader(pool, a.Logger)
	environment := &operations.Doctor{Options: func() doctor.Options {
		return doctor.Options{Config: a.currentConfig.Load(), Pool: pool, Conn: a.anyStreamConn,
			Spool: a.deliverySpool}
	}}
	api := admin.New(admin.Options{Pool: pool, Ready: a.Ready, Metrics: a.metrics.Handler(),
		Stream: a.anyStreamConn, Retention: retentionPolicy(a.Config), Logger: a.Logger,
		DeniedRequests: deniedRequests, Follower: follower, Changes: reader, RequireTokens: require, Tokens: tokens,
		SeparateApprovals: a.Config.Approvals.Separate,
		OpenMetrics:       a.Config.Admin.OpenMetrics, ProcessID: a.id, Reprocessor: a.reprocessor,
		Doctor:       environment,
		Endpoints:    func() []config.Endpoint { return a.currentConfig.Load().Endpoints() },
		Rules:        a.effectRules,
		Destinations: func() []config.ResolvedDestination { return a.currentConfig.Load().ResolveDestinations() }})
	handler, err := a.withConsole(ctx, api, console.Options{Sessions: pool, Follower: follower, Tokens: tokens,
		RequireTokens: require, DeniedRequests: deniedRequests})
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, ReadTimeout: adminTimeout,
		WriteTimeout: 2 * adminTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		Handler: handler}
	server.RegisterOnShutdown(follower.Close)
	server.RegisterOnShutdown(reader.Close)
	if a.Config.Admin.TLS.Cert != "" {
		if server.TLSConfig, err = adminTLS(a.Config.Admin.TLS, a.Logger); err != nil {
			return err
		}
	} else if !config.IsLoopback(address) {
		a.Logger.Warn("the admin address is not on loopback and has no certificate: anyone who reads the traffic can "+
			"use a token; set admin.tls, or use a proxy that terminates TLS", "admin", address)
	}
	a.loop("idempotency keys", func(ctx context.Context) error { return a.deleteOldKeys(ctx, pool) })
	a.serve("admin", netutil.LimitListener(a.adminListener, maxAdminConns), server, "", "")
	return nil
}

func (a *App) effectRules() []*rules.Rule { return a.currentConfig.Load().Rules() }

// consoleConns is the number of connections for pages of the console.
const consoleConns = 3

// withConsole adds the console to the admin API, if it is enabled. Pages have connections of their
// own, so that they do not delay the API.
func (a *App) withConsole(ctx context.Context, api http.Handler, o console.Options) (http.Handler, error) {
	enabled := config.IsLoopback(a.AdminAddr())
	if a.Config.Console.Enabled != nil {
		enabled = *a.Config.Console.Enabled
	}
	if !enabled {
		return api, nil
	}
	var err error
	if o.Pages, err = a.openPool(ctx, postgres.Options{URL: string(a.Config.Database.URL), Role: "postern_operator",
		AppName: "postern_console", MaxConns: consoleConns, ReadTimeout: console.PageTimeout}); err != nil {
		return nil, err
	}
	o.Endpoints = func() []config.Endpoint { return a.currentConfig.Load().Endpoints() }
	o.Rules = a.effectRules
	o.API, o.Logger, o.Name = api, a.Logger, a.Config.Console.Name
	o.Hosts, o.ReadOnly = a.Config.Console.Hosts, a.Config.Console.ReadOnly
	o.RejectionsMaxCount = int64(a.Config.Rejections.MaxCount)
	o.Retention, o.SeparateApprovals = retentionPolicy(a.Config), a.Config.Approvals.Separate
	o.Version, _ = telemetry.Version()
	pages, err := console.New(o)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.Handle(console.Prefix, pages)
	mux.Handle("GET /{$}", http.RedirectHandler(console.Prefix, http.StatusSeeOther))
	return mux, nil
}

const (
	// deleteKeysInterval is the time between two deletions of expired keys.
	deleteKeysInterval = 10 * time.Minute
	deleteKeysTimeout  = 30 * time.Second
)

// deleteOldKeys deletes expired idempotency keys until ctx ends. Every process does so; concurrent
// deletions do not conflict.
func (a *App) deleteOldKeys(ctx context.Context, pool *pgxpool.Pool) error {
	tick := time.NewTicker(deleteKeysInterval)
	defer tick.Stop()
	for {
		deleteCtx, cancel := context.WithTimeout(ctx, deleteKeysTimeout)
		if _, err := adminauth.DeleteExpiredKeys(deleteCtx, pool); err != nil && ctx.Err() == nil {
			a.Logger.Warn("cannot delete expired idempotency keys; retrying later", "error", err)
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// checkTokensTimeout limits the check for tokens before the process listens.
const checkTokensTimeout = 10 * time.Second

// checkTokens returns an error if tokens are required and no valid token exists. If PostgreSQL is
// unavailable and the process may start without it, the admin address rejects all requests until
// PostgreSQL is back.
func (a *App) checkTokens(ctx context.Context, pool *pgxpool.Pool, address string) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "count tokens", checkTokensTimeout)
	defer cancel()
	n, err := adminauth.CountValidTokens(ctx, pool)
	switch {
	case a.deliverySpool != nil && postgres.IsUnavailable(err):
		a.Logger.Warn("cannot count tokens; the admin address rejects all requests until postgresql is back", "admin",
			address, "error", err)
		return nil
	case err != nil:
		return err
	case n > 0:
		return nil
	case config.IsLoopback(address):
		return fmt.Errorf("admin.require_tokens or console.hosts is set, and there is no valid token: create one " +
			"with `postern token create --role reader --name NAME`, or remove the settings")
	}
	return fmt.Errorf("the admin address %s can be reached from other machines, and there is no valid token: create "+
		"one with `postern token create --role reader --name NAME`, or listen on loopback, e.g. %s", address,
		config.DefaultAdminListen)
}

// Ready returns the reason why this process cannot do its work, or nil.
func (a *App) Ready(ctx context.Context) error {
	for _, ready := range a.readyChecks {
		if err := ready(ctx); err != nil {
			return err
		}
	}
	return nil
}
