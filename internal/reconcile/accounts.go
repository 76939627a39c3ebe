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
	"github.com/postern-gateway/postern/internal/runs"
)

// Counts of a run that has entered one for each account.
const (
	// Accounts are those that a run was entered for.
	Accounts = "accounts"
	// Busy are those that have none, since the one of before is still open.
	Busy = "busy"
)

// enterWithin bounds the transaction that enters a run for each account.
const enterWithin = time.Minute

// mirroredAccountsSQL steps from account to account over the primary key, however many objects each has.
const mirroredAccountsSQL = `
WITH RECURSIVE a AS (
  (SELECT account FROM objects WHERE source = $1 ORDER BY account LIMIT 1)
  UNION ALL
  SELECT (SELECT o.account FROM objects o WHERE o.source = $1 AND o.account > a.account ORDER BY o.account LIMIT 1) FROM a WHERE a.account IS NOT NULL
)
SELECT account FROM a WHERE account IS NOT NULL`

// openAccountsSQL are the accounts of which the same is being reconciled, or waits for it. Runs that were entered for one account are not asked for by the same words, but
// have all else in common.
const openAccountsSQL = `
SELECT asked ->> 'account' FROM runs WHERE job = $1 AND ended_at IS NULL AND run <> $2 AND asked ? 'of' AND asked - 'account' - 'of' - 'words' = $3::jsonb - 'account' - 'of' - 'words'`

// each enters a run for each account and ends this one, in one transaction; it says false where there is none but the one that the run has anyhow: whose another
// one is, a try that goes on behind the beginning would not find out. An account whose run of before is still open gets none: it goes on from where that one ends the next time.
func (w *work) each(ctx context.Context) (entered bool, err error) {
	accounts, err := w.accounts(ctx)
	if err != nil {
		return false, err
	}
	w.order.AllAccounts = false
	if len(accounts) == 1 && accounts[0] == w.order.Account {
		return false, nil
	}
	w.order.Of = w.hold.Run.Run
	err = postgres.InTx(ctx, w.Pool, "enter a run for each account", enterWithin, func(ctx context.Context, tx pgx.Tx) error {
		busy, err := texts(ctx, tx, openAccountsSQL, Job, w.hold.Run.Run, w.order)
		if err != nil {
			return err
		}
		w.hold.Counts[Accounts], w.hold.Counts[Busy] = 0, 0
		for _, account := range accounts {
			if slices.Contains(busy, account) {
				w.hold.Counts[Busy]++
				continue
			}
			o := w.order
			o.Account = account
			if _, err := runs.AskIn(ctx, tx, runs.Order{Job: Job, Asked: o, Who: w.hold.Run.Who, Reason: w.hold.Run.Reason}); err != nil {
				return err
			}
			w.hold.Counts[Accounts]++
		}
		return w.hold.Done(ctx, tx)
	})
	return err == nil, err
}

// accounts are those that are known: the key's own, those that the configuration names, and those of the mirror; each by the name that the provider's API has for it. Those that the configuration
// excepts are not among them.
func (w *work) accounts(ctx context.Context) ([]string, error) {
	if _, ok := w.source.Reader.(provider.Sited); ok {
		return []string{w.order.Account}, nil // the key is of no other
	}
	events, listed := w.source.Reader.(provider.EventLister)
	if w.order.What == Events && !listed {
		return []string{w.order.Account}, nil // hooks are listed, whoever's events they carry
	}
	mirrored, err := texts(ctx, w.Pool, mirroredAccountsSQL, w.order.Source)
	if err != nil {
		return nil, err
	}
	all := []string{w.order.Account}
	for _, account := range slices.Concat(w.source.Config.Accounts, mirrored) {
		if w.order.What == Events {
			account = w.named(events.ListEvents(w.source.API, account, time.Time{}, time.Time{}, "").Account)
		}
		if account != "*" && !slices.Contains(all, account) {
			all = append(all, account)
		}
	}
	all = slices.DeleteFunc(all, w.source.excepts)
	if some := slices.DeleteFunc(slices.Clone(all), func(account string) bool { return !w.lists(account) }); len(some) > 0 {
		return some, nil
	}
	return all, nil // whose runs say why not
}

// excepts tells whether an account of the mirror, or a part of one (".../test"), is left out where all are meant.
func (s *Source) excepts(account string) bool { return slices.Contains(s.Except, s.of(account)) }

// of is the account that one of the mirror is, or is a part of, as the provider names it, "" for the one that the key is of.
func (s *Source) of(account string) string {
	of := s.Reader.Control(s.API, account).Account
	if of == s.Config.Account {
		return ""
	}
	return of
}

// lists tells whether there is anything to reconcile of an account: what one part of an account has, another may not.
func (w *work) lists(account string) bool {
	lister, ok := w.source.Reader.(provider.ObjectLister)
	if w.order.What != Objects || !ok {
		return true
	}
	lists := lister.Lists(w.source.Config, w.source.API, account)
	_, listed := lists[w.order.Type]
	return listed || w.order.Type == "" && len(lists) > 0
}

// asker is a pool or a transaction.
type asker interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func texts(ctx context.Context, db asker, sql string, args ...any) ([]string, error) {
	rows, err := db.Query(ctx, sql, args...)
	var all []string
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return nil, fmt.Errorf("list accounts: %w", err)
	}
	return all, nil
}

// enteredSQL are the runs that one entered, which are newer than it.
const enteredSQL = `SELECT run FROM runs WHERE run > $1 AND job = $2 AND (asked ->> 'of')::bigint = $1 ORDER BY run`

// Entered are the runs that a run has entered, one for each account; none where it was itself the run of the one account.
func Entered(ctx context.Context, pool *pgxpool.Pool, run int64) ([]int64, error) {
	rows, err := pool.Query(ctx, enteredSQL, run, Job)
	var all []int64
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		return nil, fmt.Errorf("list runs that run %d has entered: %w", run, err)
	}
	return all, nil
}
