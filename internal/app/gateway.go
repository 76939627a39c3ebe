package app

import (
	"context"
	"net/http"

	"golang.org/x/net/netutil"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// maxStreams is how many requests at once one connection of HTTP/2 may carry.
const maxStreams = 100

// addGateway wires the ingest side. It stops in this order: not ready, no new connections, requests drained, batches flushed,
// publishes answered, stream and pool closed.
func (a *App) addGateway(ctx context.Context, t Tuning) error {
	cfg := a.Config
	keep, name, err := a.openSpool(cfg)
	if err != nil {
		return err
	}
	pool, known, err := a.gatewayStore(ctx, cfg, keep != nil, t.Ingest.Sessions())
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
	server, err := ingest.New(ingest.Options{Pool: pool, Endpoints: gatewaySources(cfg, known), Publish: publisher.Offer, Settings: t.Ingest, Logger: a.Logger,
		Spool: keep, SpoolName: name, SpoolPlace: spool.Place(cfg.Ingest.Spool.Dir), Unproven: a.away, TrustedProxies: cfg.Ingest.Proxies(), Metrics: a.metrics, Now: t.Now, Tracer: telemetry.Tracer("github.com/postern-gateway/postern/internal/ingest")})
	if err != nil {
		return err
	}
	a.gateway, a.registrar = server, pool
	a.loop("ingest writer", server.Run)
	if a.away {
		a.loop("store", func(ctx context.Context) error { return a.awaitStore(ctx, pool, server) })
	}
	a.ready = append(a.ready, server.Ready)
	if a.ingest, err = a.listen(ctx, "ingest", cfg.Ingest.Listen); err != nil {
		return err
	}
	counted, err := a.countConnections(netutil.LimitListener(a.ingest, cfg.Ingest.MaxConnections))
	if err != nil {
		return err
	}
	a.serve("ingest", counted, &http.Server{Handler: counted.handler(server.Handler()), ConnContext: counted.context,
		ReadHeaderTimeout: cfg.Ingest.HeaderTimeout, ReadTimeout: cfg.Ingest.ReadTimeout, WriteTimeout: cfg.Ingest.ReadTimeout + 2*cfg.Ingest.Deadline,
		IdleTimeout: cfg.Ingest.IdleTimeout, MaxHeaderBytes: int(cfg.Ingest.MaxHeaderBytes), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams}},
		cfg.Ingest.TLS.Cert, cfg.Ingest.TLS.Key)
	a.stack.Defer("readiness", func(context.Context) error { server.Drain(); return nil })
	return nil
}
