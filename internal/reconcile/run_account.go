package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// accountTimeout bounds a transaction that stores the result of an account check.
const accountTimeout = 5 * time.Minute

// checkRunAccount checks the account at the start of an attempt. It ends the run if the account is
// disconnected, or if the key belongs to another account. If the check has no result, an operator
// must approve the run.
func (w *execution) checkRunAccount(ctx context.Context) (runs.Status, error) {
	if w.params.Scope == Objects && w.HasFixedAccount() { // each scan of a type requests the provider's time
		return runs.Running, nil
	}
	if _, err := w.CheckKey(ctx, w.params.Account); err != nil { // the response also has the provider's time
		return w.handleDisconnected(ctx, err)
	}
	if err := w.markConnected(ctx); err != nil {
		return "", err
	}
	_, err := w.CheckAccount(ctx, w.params.Account, versioning.Key{})
	var otherAccount *refetch.OtherAccountError
	var unverified *refetch.AccountUnverifiedError
	switch {
	case errors.As(err, &otherAccount):
		return "", runs.Permanent(err)
	case !errors.As(err, &unverified):
		return runs.Running, err
	case w.params.DryRun: // it appends nothing that an operator could approve
		return "", runs.Permanent(err)
	case w.lease.IsApproved(w.keyApproval()):
		w.KeyApproved = true
		return runs.Running, nil
	}
	err = postgres.InTx(ctx, w.Pool, "request approval", accountTimeout, func(ctx context.Context, tx pgx.Tx) error {
		return w.lease.RequestApproval(ctx, tx, w.keyApproval(),
			fmt.Sprintf("%s. If the key is right all the same (the objects may be deleted), an operator must approve "+
				"this before the run continues: postern runs approve %d --reason TEXT", unverified, w.lease.Run.ID))
	})
	if err != nil {
		return "", err
	}
	return runs.AwaitingApproval, nil
}

// Disconnected counts the account of a run if it is disconnected. Nothing of it was read, and no
// watermark moved.
const Disconnected = "disconnected"

// maxOtherAccounts is how many other accounts are tried to see whether the key works for any of
// them.
const maxOtherAccounts = 3

const (
	disconnectedAccountsSQL = `SELECT d.account FROM disconnected_accounts d WHERE d.source = $1`

	upsertDisconnectedSQL = `
INSERT INTO disconnected_accounts AS d (source, account, since, observed_at, run, reason)
	VALUES ($1, $2, clock_now(), clock_now(), $3, $4)
ON CONFLICT (source, account) DO UPDATE SET observed_at = excluded.observed_at, run = excluded.run,
	reason = excluded.reason`

	deleteDisconnectedSQL = `DELETE FROM disconnected_accounts d WHERE d.source = $1 AND d.account = $2`

	// recentAccountsSQL returns the accounts with a watermark, those with the most recent ones
	// first.
	recentAccountsSQL = `SELECT m.account FROM watermarks m WHERE m.source = $1 GROUP BY m.account
		ORDER BY max(m.recorded_at) DESC`
)

// handleDisconnected skips an account if the API's error says that it is disconnected. Otherwise
// each run over all accounts would fail. The account's watermarks stay as they are. A run for this
// account alone returns the error.
func (w *execution) handleDisconnected(ctx context.Context, rejection error) (runs.Status, error) {
	var rejectedErr *refetch.RejectedError
	account := providerAccount(w.Source, w.params.Account)
	if !errors.As(rejection, &rejectedErr) || !rejectedErr.Disconnected || w.params.ParentRun == 0 || account == "" {
		return "", rejection
	}
	disconnected, err := queryAccounts(ctx, w.Pool, disconnectedAccountsSQL, w.params.Source)
	if err != nil {
		return "", err
	}
	if !slices.Contains(disconnected, account) {
		if err := w.checkOnlyAccountRejected(ctx, append(disconnected, account), rejection); err != nil {
			return "", err
		}
		w.log.Warn("account skipped, because it is disconnected", "source", w.Source.Name, "account", account, "error",
			rejection)
	}
	w.lease.Counts[Disconnected] = 1
	err = postgres.InTx(ctx, w.Pool, "skip an account", accountTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if !w.params.DryRun {
			if _, err := tx.Exec(ctx, upsertDisconnectedSQL, w.params.Source, account, w.lease.Run.ID,
				events.SanitizeText(rejectedErr.Text)); err != nil {
				return fmt.Errorf("record that account %s is disconnected: %w", account, err)
			}
		}
		return w.lease.CompleteInTx(ctx, tx)
	})
	if err != nil {
		return "", err
	}
	return runs.Done, nil
}

// checkOnlyAccountRejected returns an error unless the API rejects this account only, and not the
// key. The key must work for its own account and, if other connected accounts have watermarks, for
// one of them. Without such accounts, the account check must succeed for the key's own account.
func (w *execution) checkOnlyAccountRejected(ctx context.Context, disconnected []string, rejection error) error {
	if _, err := w.CheckKey(ctx, w.ownAccount()); err != nil {
		return err
	}
	others, err := w.otherAccounts(ctx, disconnected)
	if err != nil {
		return err
	}
	for _, other := range others {
		if _, err = w.CheckKey(ctx, other); err == nil || !errors.As(err, new(*refetch.RejectedError)) {
			return err
		}
	}
	verified := false
	if len(others) == 0 {
		verified, err = w.CheckAccount(ctx, w.ownAccount(), versioning.Key{})
	}
	const advice = "nothing shows that only this account is disconnected and that the key still works. If you know " +
		"that, list the removed accounts under reconcile.exclude"
	switch {
	case verified:
		return nil
	case errors.As(err, new(*refetch.OtherAccountError)), errors.As(err, new(*refetch.AccountUnverifiedError)):
		return runs.Permanent(fmt.Errorf("%w; and %w", rejection, err))
	case len(others) > 0:
		return runs.Permanent(fmt.Errorf("%w. The API also rejects account %s: %s", rejection,
			strings.Join(others, ", "), advice))
	case err == nil:
		return runs.Permanent(fmt.Errorf("%w; and %s", rejection, advice))
	}
	return err
}

// otherAccounts returns a few connected accounts with recent watermarks, without the disconnected
// and excluded ones.
func (w *execution) otherAccounts(ctx context.Context, disconnected []string) (some []string, err error) {
	all, err := queryAccounts(ctx, w.Pool, recentAccountsSQL, w.params.Source)
	if err != nil {
		return nil, err
	}
	for _, account := range all {
		if name := providerAccount(w.Source, account); name != "" && len(some) < maxOtherAccounts &&
			!slices.Contains(slices.Concat(disconnected, w.Source.ExcludedAccounts, some), name) {
			some = append(some, name)
		}
	}
	return some, nil
}

// markConnected records that the key works for the account of the run.
func (w *execution) markConnected(ctx context.Context) error {
	if w.params.DryRun {
		return nil
	}
	if _, err := w.Pool.Exec(ctx, deleteDisconnectedSQL, w.params.Source,
		providerAccount(w.Source, w.params.Account)); err != nil {
		return fmt.Errorf("record that account %s is connected: %w", w.params.Account, err)
	}
	return nil
}

// keyApproval returns the subject that an operator approves to accept the source's key although no
// account check succeeded. It is a digest of the key and the run, so another key or another run
// needs its own approval.
func (w *execution) keyApproval() string {
	digest := sha256.New()
	fmt.Fprintf(digest, "postern run %d %s\n", w.lease.Run.ID, w.Source.API.BaseURL)
	digest.Write(w.Source.API.Key.Value)
	return "key " + hex.EncodeToString(digest.Sum(nil)[:16])
}
