package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Disconnected counts the account that a run was for where it is disconnected: nothing was read of it, and nothing is proven.
const Disconnected = "disconnected"

// askOthers is how many other accounts are asked for, to see whether the key acts for any.
const askOthers = 3

const (
	disconnectedOfSQL = `SELECT d.account FROM disconnected d WHERE d.source = $1`

	disconnectedSQL = `
INSERT INTO disconnected AS d (source, account, since, at, run, why) VALUES ($1, $2, clock_now(), clock_now(), $3, $4)
ON CONFLICT (source, account) DO UPDATE SET at = excluded.at, run = excluded.run, why = excluded.why`

	connectedSQL = `DELETE FROM disconnected d WHERE d.source = $1 AND d.account = $2`

	// provenLastSQL are the accounts of which something is proven, those first of which something was last.
	provenLastSQL = `SELECT m.account FROM watermarks m WHERE m.source = $1 GROUP BY m.account ORDER BY max(m.at) DESC`
)

// disconnected passes over an account whose control ended with an error, where that says that the account is disconnected: each run of all accounts would fail for ever. What is proven of it stays as it is. Who
// asks for the account by its name is told the error.
func (w *work) disconnected(ctx context.Context, refused error) (runs.Status, error) {
	var not *refusedError
	account := w.source.of(w.order.Account)
	if !errors.As(refused, &not) || !not.disconnected || w.order.Of == 0 || account == "" {
		return "", refused
	}
	known, err := texts(ctx, w.Pool, disconnectedOfSQL, w.order.Source)
	if err != nil {
		return "", err
	}
	if !slices.Contains(known, account) {
		if err := w.acts(ctx, append(known, account), refused); err != nil {
			return "", err
		}
		w.log.Warn("account passed over, for it is disconnected", "source", w.source.Name, "account", account, "error", refused)
	}
	w.hold.Counts[Disconnected] = 1
	err = postgres.InTx(ctx, w.Pool, "pass over an account", keepWithin, func(ctx context.Context, tx pgx.Tx) error {
		if !w.order.DryRun {
			if _, err := tx.Exec(ctx, disconnectedSQL, w.order.Source, account, w.hold.Run.Run, events.Text(not.text)); err != nil {
				return fmt.Errorf("keep that account %s is disconnected: %w", account, err)
			}
		}
		return w.hold.Done(ctx, tx)
	})
	if err != nil {
		return "", err
	}
	return runs.Done, nil
}

// acts ends the run unless it is the account that is refused, and not the key: that must be good for its own account and, where something is proven of other connected ones, for one of them. Where there are none, it
// must be shown to be the key of the account that the log is of.
func (w *work) acts(ctx context.Context, gone []string, refused error) error {
	if _, err := w.control(ctx, w.home()); err != nil {
		return err
	}
	others, err := w.others(ctx, gone)
	if err != nil {
		return err
	}
	for _, other := range others {
		if _, err = w.control(ctx, other); err == nil || !errors.As(err, new(*refusedError)) {
			return err
		}
	}
	shown := false
	if len(others) == 0 {
		shown, err = w.ours(ctx, w.home(), versioning.Key{})
	}
	const advice = "nothing shows that the account is disconnected, and the key as good as before. If it is, name the accounts that are gone under reconcile.except"
	switch {
	case shown:
		return nil
	case errors.As(err, new(*foreignError)), errors.As(err, new(*unshownError)):
		return runs.Refuse(fmt.Errorf("%w; and %w", refused, err))
	case len(others) > 0:
		return runs.Refuse(fmt.Errorf("%w. So it does for account %s: %s", refused, strings.Join(others, ", "), advice))
	case err == nil:
		return runs.Refuse(fmt.Errorf("%w; and %s", refused, advice))
	}
	return err
}

// others are a few connected accounts of which something was proven of late, without those that are gone or left out.
func (w *work) others(ctx context.Context, gone []string) (some []string, err error) {
	all, err := texts(ctx, w.Pool, provenLastSQL, w.order.Source)
	if err != nil {
		return nil, err
	}
	for _, account := range all {
		if of := w.source.of(account); of != "" && len(some) < askOthers && !slices.Contains(slices.Concat(gone, w.source.Except, some), of) {
			some = append(some, of)
		}
	}
	return some, nil
}

// connected notes that the key acts for the account of the run.
func (w *work) connected(ctx context.Context) error {
	if w.order.DryRun {
		return nil
	}
	if _, err := w.Pool.Exec(ctx, connectedSQL, w.order.Source, w.source.of(w.order.Account)); err != nil {
		return fmt.Errorf("forget that account %s was disconnected: %w", w.order.Account, err)
	}
	return nil
}
