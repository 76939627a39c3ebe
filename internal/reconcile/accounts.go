package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

// Counts of a run that has started one run per account.
const (
	// Accounts are the accounts for which a run was started.
	Accounts = "accounts"
	// BusyAccounts are the accounts without a new run, because their previous run is still open.
	BusyAccounts = "busy"
)

// startTimeout bounds the transaction that starts a run for each account.
const startTimeout = time.Minute

// openAccountsSQL returns the accounts for which the same reconciliation is running or queued. Such
// runs differ from each other in their account, parent run and request text only.
const openAccountsSQL = `
SELECT params ->> 'account' FROM runs WHERE job = $1 AND ended_at IS NULL AND run <> $2 AND params ? 'parent_run'
	AND params - 'account' - 'parent_run' - 'input' = $3::jsonb - 'account' - 'parent_run' - 'input'`

// startRunPerAccount starts a run for each account and ends this run, in one transaction. It
// returns false if the only account is the one that this run already has; this run then goes on
// itself. It starts no run for an account whose previous run is still open. The next run continues
// from where that one ends.
func (w *execution) startRunPerAccount(ctx context.Context) (started bool, err error) {
	accounts, err := w.listAccounts(ctx)
	if err != nil {
		return false, err
	}
	w.params.AllAccounts = false
	if len(accounts) == 1 && accounts[0] == w.params.Account {
		return false, nil
	}
	w.params.ParentRun = w.lease.Run.ID
	err = postgres.InTx(ctx, w.Pool, "start a run for each account", startTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			busy, err := queryAccounts(ctx, tx, openAccountsSQL, Job, w.lease.Run.ID, w.params)
			if err != nil {
				return err
			}
			w.lease.Counts[Accounts], w.lease.Counts[BusyAccounts] = 0, 0
			for _, account := range accounts {
				if slices.Contains(busy, account) {
					w.lease.Counts[BusyAccounts]++
					continue
				}
				params := w.params
				params.Account = account
				if _, err := runs.CreateInTx(ctx, tx, runs.Request{Job: Job, Params: params, Actor: w.lease.Run.Actor,
					Reason: w.lease.Run.Reason}); err != nil {
					return err
				}
				w.lease.Counts[Accounts]++
			}
			return w.lease.CompleteInTx(ctx, tx)
		})
	return err == nil, err
}

// listAccounts returns the registered accounts by the names that the provider's API uses: the key's
// own account, the configured accounts and the mirrored ones. It leaves out the accounts that the
// configuration excludes.
func (w *execution) listAccounts(ctx context.Context) ([]string, error) {
	if _, ok := w.Source.Reader.(provider.BaseURLReader); ok {
		return []string{w.params.Account}, nil // the key belongs to this account only
	}
	events, listed := w.Source.Reader.(provider.EventLister)
	if w.params.Scope == Events && !listed {
		return []string{w.params.Account}, nil // the list of deliveries covers all accounts
	}
	mirrored, err := refetch.MirroredAccounts(ctx, w.Pool, w.params.Source)
	if err != nil {
		return nil, err
	}
	all := []string{w.params.Account}
	for _, account := range slices.Concat(w.Source.Config.Accounts, mirrored) {
		if w.params.Scope == Events {
			account = w.WebhookAccount(events.ListEvents(w.Source.API, account, time.Time{}, time.Time{}, "").Account)
		}
		if account != "*" && !slices.Contains(all, account) {
			all = append(all, account)
		}
	}
	all = slices.DeleteFunc(all, func(account string) bool { return excludes(w.Source, account) })
	some := slices.DeleteFunc(slices.Clone(all), func(account string) bool { return !w.hasLists(account) })
	if len(some) > 0 {
		return some, nil
	}
	return all, nil // their runs report why they cannot read anything
}

// excludes reports whether a run over all accounts of a source excludes an account of the mirror,
// or a part of one (".../test").
func excludes(s *providerapi.Source, account string) bool {
	return slices.Contains(s.ExcludedAccounts, providerAccount(s, account))
}

// providerAccount returns the provider's name for an account of the mirror. For a part of an
// account it returns the name of the account, and "" for the account that the key belongs to.
func providerAccount(s *providerapi.Source, account string) string {
	name := s.Reader.CredentialCheck(s.API, account).Account
	if name == s.Config.Account {
		return ""
	}
	return name
}

// hasLists reports whether there is anything to reconcile for an account. Parts of one account can
// differ in this.
func (w *execution) hasLists(account string) bool {
	lister, ok := w.Source.Reader.(provider.ObjectLister)
	if w.params.Scope != Objects || !ok {
		return true
	}
	lists := lister.Lists(w.Source.Config, w.Source.API, account)
	_, listed := lists[w.params.Type]
	return listed || w.params.Type == "" && len(lists) > 0
}

func queryAccounts(ctx context.Context, db postgres.Querier, sql string, args ...any) ([]string, error) {
	all, err := postgres.Collect(ctx, db, pgx.RowTo[string], sql, args...)
	if err != nil {
		return nil, fmt.Errorf("list accounts: %w", err)
	}
	return all, nil
}

// startedRunsSQL returns the runs that a run has started. They are newer than it.
const startedRunsSQL = `SELECT run FROM runs WHERE run > $1 AND job = $2 AND (params ->> 'parent_run')::bigint = $1
	ORDER BY run`

// StartedRuns returns the runs that a run has started, one for each account. It returns none if the
// run itself handled the only account.
func StartedRuns(ctx context.Context, pool *pgxpool.Pool, run int64) ([]int64, error) {
	all, err := postgres.Collect(ctx, pool, pgx.RowTo[int64], startedRunsSQL, run, Job)
	if err != nil {
		return nil, fmt.Errorf("list the runs that run %d has started: %w", run, err)
	}
	return all, nil
}
