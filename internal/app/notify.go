package app

import (
	"context"

	"github.com/postern-gateway/postern/internal/notify"
)

// maxNotifyConns limits the connections for alerts, which use short transactions.
const maxNotifyConns = 2

// addNotify adds the watcher that sends alerts to operators.
func (a *App) addNotify(ctx context.Context, t Tuning) error {
	pool, err := a.namedPool(ctx, string(a.Config.Database.URL), "postern_processor", "postern_processor_notify",
		maxNotifyConns)
	if err != nil {
		return err
	}
	if a.notify, err = notify.New(pool, t.Notify, a.Logger.With("component", "notify"), a.metrics); err != nil {
		return err
	}
	a.notify.Replace(notify.Recipients(a.Config))
	a.loop("notify", a.notify.Run)
	return nil
}
