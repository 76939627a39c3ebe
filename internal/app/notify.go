package app

import (
	"context"

	"github.com/postern-gateway/postern/internal/notify"
)

// notifyConnections is how many connections the telling of what needs a person may hold: it looks and notes in short transactions.
const notifyConnections = 2

// addNotify makes what tells people what needs one.
func (a *App) addNotify(ctx context.Context, t Tuning) error {
	pool, err := a.namedPool(ctx, string(a.Config.Database.URL), "postern_processor", "postern_processor_notify", notifyConnections)
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
