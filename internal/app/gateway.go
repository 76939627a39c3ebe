package app

import (
	"context"
	"net/http"

	"golang.org/x/net/netutil"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// addGateway wires the ingest side. It stops in this order: not ready, no new connections, requests drained, batches flushed,
// publishes answered, stream and pool closed.
func (a *App) addGateway(ctx context.Context, t Tuning) error {
	cfg := a.Config
	pool, err := a.pool(ctx, string(cfg.Database.URL), "postern_gateway", int32(cfg.Database.MaxConnections))
	if err != nil {
		return err
	}
	if err := postgres.CheckSchema(ctx, pool); err != nil {
		return err
	}
	known, err := register(ctx, pool, cfg)
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
		Metrics: a.metrics, Now: t.Now, Tracer: telemetry.Tracer("github.com/postern-gateway/postern/internal/ingest")})
	if err != nil {
		return err
	}
	a.gateway, a.registrar = server, pool
	a.loop("ingest writer", server.Run)
	a.ready = append(a.ready, server.Ready)
	if a.ingest, err = a.listen(ctx, "ingest", cfg.Ingest.Listen); err != nil {
		return err
	}
	limited := netutil.LimitListener(a.ingest, cfg.Ingest.MaxConnections)
	a.serve("ingest", limited, &http.Server{Handler: server.Handler(), ReadHeaderTimeout: cfg.Ingest.HeaderTimeout, ReadTimeout: cfg.Ingest.ReadTimeout,
		WriteTimeout: cfg.Ingest.ReadTimeout + 2*cfg.Ingest.Deadline, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes},
		cfg.Ingest.TLS.Cert, cfg.Ingest.TLS.Key)
	a.stack.Defer("readiness", func(context.Context) error { server.Drain(); return nil })
	return nil
}
