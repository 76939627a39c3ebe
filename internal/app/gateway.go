package app

import (
	"context"
	"net/http"

	"golang.org/x/net/netutil"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// maxHTTP2Streams is the maximum number of concurrent requests on one HTTP/2 connection.
const maxHTTP2Streams = 100

// addGateway adds the gateway. It stops in this order: readiness, new connections, open requests,
// batches, publications, stream and pool.
func (a *App) addGateway(ctx context.Context, t Tuning) error {
	cfg := a.Config
	name, err := a.openSpool(cfg, t.SpoolStallAfter)
	if err != nil {
		return err
	}
	pool, known, err := a.connectStore(ctx, cfg, t.Ingest.Sessions())
	if err != nil {
		return err
	}
	conn, err := a.connect(ctx, "gateway", t.Limits)
	if err != nil {
		return err
	}
	publisher, err := stream.NewPublisher(conn, t.Limits, a.Logger, a.metrics)
	if err != nil {
		return err
	}
	a.loop("publisher", publisher.Run)
	server, err := ingest.New(ingest.Options{Pool: pool, Endpoints: gatewaySources(cfg, known),
		Publish: publisher.Offer, Settings: t.Ingest, Logger: a.Logger,
		Spool: a.deliverySpool, SpoolName: name, SpoolLocation: spool.Location(cfg.Ingest.Spool.Dir),
		DatabaseUnchecked: a.databaseUnavailable,
		TrustedProxies:    cfg.Ingest.Proxies(), Metrics: a.metrics, Types: &a.types, Now: t.Now,
		Tracer: telemetry.Tracer("github.com/postern-gateway/postern/internal/ingest")})
	if err != nil {
		return err
	}
	a.gateway, a.sourcesPool = server, pool
	a.loop("ingest writer", server.Run)
	if a.databaseUnavailable {
		a.loop("store", func(ctx context.Context) error { return a.waitForStore(ctx, pool, server) })
	}
	a.readyChecks = append(a.readyChecks, server.Ready)
	if a.ingestListener, err = a.listen(ctx, "ingest", cfg.Ingest.Listen); err != nil {
		return err
	}
	countingListener, err := a.countConnections(netutil.LimitListener(a.ingestListener, cfg.Ingest.MaxConnections))
	if err != nil {
		return err
	}
	a.serve("ingest", countingListener, &http.Server{Handler: countingListener.handler(server.Handler()),
		ConnContext:       countingListener.context,
		ReadHeaderTimeout: cfg.Ingest.HeaderTimeout, ReadTimeout: cfg.Ingest.ReadTimeout,
		WriteTimeout: cfg.Ingest.ReadTimeout + 2*cfg.Ingest.Deadline,
		IdleTimeout:  cfg.Ingest.IdleTimeout, MaxHeaderBytes: int(cfg.Ingest.MaxHeaderBytes),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxHTTP2Streams}},
		cfg.Ingest.TLS.Cert, cfg.Ingest.TLS.Key)
	a.stack.Defer("readiness", func(context.Context) error { server.Drain(); return nil })
	return a.addReprocessor(ctx)
}

// addReprocessor lets operators verify rejected deliveries again. It has its own connections, so
// that it never delays deliveries.
func (a *App) addReprocessor(ctx context.Context) error {
	pool, err := a.namedPool(ctx, string(a.Config.Database.URL), "postern_gateway", "postern_gateway_reprocess", 2)
	a.reprocessor = &operations.Reprocessor{Pool: pool,
		Endpoints: func() []config.Endpoint { return a.currentConfig.Load().Endpoints() }}
	return err
}
