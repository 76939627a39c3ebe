package app

import (
	"context"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
)

const (
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	adminTimeout   = 30 * time.Second
)

// addAdmin wires the operator's listener: health, metrics and the JSON interface, as a role that only reads.
func (a *App) addAdmin(ctx context.Context) error {
	pool, err := a.pool(ctx, string(a.Config.Database.URL), "postern_operator", 4)
	if err != nil {
		return err
	}
	if a.admin, err = a.listen(ctx, "admin", a.Config.Admin.ListenOr(a.AdminListen)); err != nil {
		return err
	}
	handler := admin.New(admin.Options{Pool: pool, Ready: a.Ready, Metrics: a.metrics.Handler(), Retention: retentionPolicy(a.Config), Logger: a.Logger,
		Endpoints: func() []config.Endpoint { return a.inUse.Load().Endpoints() }})
	a.serve("admin", a.admin, &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: adminTimeout, WriteTimeout: 2 * adminTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes}, "", "")
	return nil
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
