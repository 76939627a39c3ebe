// Package reconcile compares the log and the mirror with the provider's API. It appends missing
// events, and refetches of objects that are missing, different or ambiguous, to the log. It never
// changes the mirror directly: these events are applied like all others. The processor runs its
// jobs; operators start runs through package admin.
package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

// Job is the name of reconciliation runs in the run ledger.
const Job = "reconcile"

// The scopes of a reconciliation.
const (
	// Events: the events that the provider lists or has sent.
	Events = "events"
	// Object: one object.
	Object = "object"
	// Objects: all objects of a type, or of every type that the API lists.
	Objects = "objects"
)

// Params are the parameters of a reconciliation.
type Params struct {
	// Source is the number of the source, and Account the tenant inside it, "" for the account that
	// the key belongs to.
	Source  int32  `json:"source"`
	Account string `json:"account"`
	// AllAccounts: this run starts a run for each registered account.
	AllAccounts bool `json:"all_accounts,omitzero"`
	// ParentRun is the run that started this one for an account; 0 for none.
	ParentRun int64 `json:"parent_run,omitzero"`
	// Scope is Events, Object or Objects. Type and ID are the object's. For Objects an empty Type
	// means every type that the API lists.
	Scope string `json:"scope"`
	Type  string `json:"type,omitzero"`
	ID    string `json:"id,omitzero"`
	// Full: all objects are listed, even if the API can list only those that changed.
	Full bool `json:"full,omitzero"`
	// Since and Until bound the time of the events, or of the objects' changes, on the provider's
	// clock. Zero means from the watermark, less an overlap, and until now.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// DryRun: nothing is appended.
	DryRun bool `json:"dry_run,omitzero"`
	// Overwrite: an operator lets the API's current response win over all local history, including
	// a final tombstone.
	Overwrite bool `json:"overwrite,omitzero"`
	// Input are the parameters as the operator wrote them, by name.
	Input map[string]string `json:"input"`
}

// Counts of a run.
const (
	// Processed are the events or objects that the provider has listed.
	Processed = "processed"
	// Missing are those that the log lacked. They are appended, except in a dry run.
	Missing = "missing"
	// Present are those that the log had.
	Present = "present"
	// Conflicting are events that the log has with other content.
	Conflicting = "conflicting"
	// SkewSeconds is by how much the API's clock and the database's differed, rounded up, if it
	// exceeds the tolerated skew.
	SkewSeconds = "skew_seconds"
)

// Settings are the intervals and limits of reconciliations. Tests shorten them.
type Settings struct {
	// InitialInterval is the first interval of provider time that is read between two checkpoints.
	// The interval grows and shrinks with its number of pages.
	InitialInterval, MinInterval, MaxInterval time.Duration
	// RetryDelay is the pause before a failed step is retried.
	RetryDelay time.Duration
	// MaxPollDelay is the longest pause between requests for a list that the provider is still
	// preparing.
	MaxPollDelay time.Duration
	// WaitReportDelay is how long a run waits for outcomes before its detail says so.
	WaitReportDelay time.Duration
}

// DefaultSettings are the shipped settings.
var DefaultSettings = Settings{InitialInterval: time.Hour, MinInterval: time.Minute, MaxInterval: 24 * time.Hour,
	RetryDelay: time.Second, MaxPollDelay: time.Minute, WaitReportDelay: 10 * time.Second}

// Runner executes reconciliations.
type Runner struct {
	*refetch.Resources
	Settings Settings
}

// execution is one reconciliation that this process executes.
type execution struct {
	refetch.Fetcher
	settings Settings
	lease    *runs.Lease
	params   Params
	log      *slog.Logger
	// pendingCounts are the counts since the last checkpoint. If the process ends there, they are
	// counted again.
	pendingCounts map[string]int64
	// missingKeys are the keys of the missing events of the current interval.
	missingKeys []string
}

// Execute executes the run that the lease belongs to. It implements the job function of package
// runs.
func (r *Runner) Execute(ctx context.Context, lease *runs.Lease, log *slog.Logger) (status runs.Status, err error) {
	defer func() {
		if p := recover(); p != nil { // otherwise each processor that retries the run would crash in turn
			err = runs.Permanent(refetch.PanicError(p))
		}
	}()
	w := &execution{settings: r.Settings, lease: lease, log: log,
		pendingCounts: map[string]int64{}}
	decoder := json.NewDecoder(bytes.NewReader(lease.Params))
	decoder.DisallowUnknownFields() // an unknown field of a later release may change the meaning of the others
	if err := decoder.Decode(&w.params); err != nil {
		return "", runs.Permanent(fmt.Errorf("read the run's parameters: %w", err))
	}
	w.Fetcher = refetch.Fetcher{Resources: r.Resources, Source: r.Sources.All()[w.params.Source],
		Verification: fmt.Appendf(nil, `{"scheme":"api","run":%d}`, lease.Run.ID)}
	if w.Source == nil {
		return "", runs.Permanent(errors.New("the configuration of the processor that executes the run has no " +
			"section api for the source: add it there, and start the run again"))
	}
	if w.params.Account == "" {
		w.params.Account = w.ownAccount()
	}
	w.ByOperator = w.params.Scope == Object
	if w.params.AllAccounts && lease.Cursor == 0 {
		if started, err := w.startRunPerAccount(ctx); err != nil || started {
			return runs.Done, err
		}
	}
	status, err = w.execute(ctx)
	var spent *providerapi.MonthlyBudgetError
	if errors.As(err, &spent) { // the run waits for calls
		err = runs.Requeue(min(spent.Wait, w.settings.MaxPollDelay), spent.Error())
	}
	return status, err
}

// execute executes the run once the budget allows a call.
func (w *execution) execute(ctx context.Context) (runs.Status, error) {
	// the old message is removed once a call is possible
	if strings.HasPrefix(w.lease.Detail, providerapi.MonthlyBudgetMessage) {
		if _, err := w.CheckKey(ctx, w.params.Account); err != nil {
			return w.handleDisconnected(ctx, err)
		}
		if err := w.lease.SetDetail(ctx, ""); err != nil {
			return "", err
		}
	}
	switch w.params.Scope {
	case Events:
		return w.reconcileEvents(ctx)
	case Object:
		return w.refetchObject(ctx)
	case Objects:
		return w.scanObjects(ctx)
	}
	return "", runs.Permanent(fmt.Errorf("%q cannot be reconciled", w.params.Scope))
}

// scanObjects compares the objects of the run with the provider's lists.
func (w *execution) scanObjects(ctx context.Context) (runs.Status, error) {
	p := w.params
	scan := &objectscan.Run{Fetcher: &w.Fetcher, Lease: w.lease, Logger: w.log, RetryDelay: w.settings.RetryDelay,
		MaxPollDelay: w.settings.MaxPollDelay, WaitForOutcomes: w.waitForOutcomes,
		Params: objectscan.Params{Account: p.Account, Type: p.Type, Full: p.Full, Since: p.Since, Until: p.Until,
			DryRun: p.DryRun}}
	if err := scan.Prepare(); err != nil {
		return "", err
	}
	if status, err := w.checkRunAccount(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if status, err := scan.Scan(ctx); err != nil || status != runs.Running {
		return status, err
	}
	w.recordSkew()
	return w.lease.Advance(ctx, w.lease.Cursor+1)
}

// ownAccount returns the account of parameters without an account: the key's own account, as the
// mirror names it. Events of a source's own account name no account.
func (w *execution) ownAccount() string {
	if in, ok := w.Source.Reader.(provider.BaseURLReader); ok {
		return in.KeyAccount(w.Source.Config)
	}
	if w.params.Scope == Events {
		return ""
	}
	return w.Source.Config.Account
}

// appendDeliveries appends deliveries and applies the new events to the mirror. It returns the ids
// of all their events, new or not.
func (w *execution) appendDeliveries(ctx context.Context, ds []events.Delivery) ([]int64, error) {
	receipts, err := events.Append(ctx, w.Log, ds)
	if err != nil {
		return nil, err
	}
	var added, present, all []int64
	conflicts, keys := int64(0), map[int64]string{}
	for _, ofDelivery := range receipts {
		for _, r := range ofDelivery {
			all = append(all, r.ID)
			switch {
			case r.Conflict:
				conflicts++
			case r.Duplicate:
				present = append(present, r.ID)
				keys[r.ID] = r.Key
			default:
				added = append(added, r.ID)
				w.missingKeys = append(w.missingKeys, r.Key)
			}
		}
	}
	appended := added
	if len(present) > 0 { // an ended process may have appended some of them
		earlier, err := w.appendedByRun(ctx, present)
		if err != nil {
			return nil, err
		}
		added = append(added, earlier...)
		for _, id := range earlier {
			w.missingKeys = append(w.missingKeys, keys[id])
		}
	}
	w.pendingCounts[Processed] += int64(len(present)+len(appended)) + conflicts
	w.pendingCounts[Present] += int64(len(present) + len(appended) - len(added))
	w.pendingCounts[Missing] += int64(len(added))
	w.pendingCounts[Conflicting] += conflicts
	_, err = w.Applier.PublishAndApply(ctx, appended)
	return all, err
}

const appendedByRunSQL = `SELECT id FROM events WHERE id = ANY($1::bigint[]) AND origin = 'reconcile'
	AND verification ->> 'run' = $2::bigint::text`

// appendedByRun returns those of some events that this run has appended.
func (w *execution) appendedByRun(ctx context.Context, ids []int64) ([]int64, error) {
	ids, err := postgres.Collect(ctx, w.Pool, pgx.RowTo[int64], appendedByRunSQL, ids, w.lease.Run.ID)
	if err != nil {
		return nil, fmt.Errorf("read the events that run %d has appended: %w", w.lease.Run.ID, err)
	}
	return ids, nil
}

// advanceCheckpoint moves the checkpoint and stores the counts.
func (w *execution) advanceCheckpoint(ctx context.Context, cursor int64) (runs.Status, error) {
	for name, n := range w.pendingCounts {
		w.lease.Counts[name] += n
	}
	clear(w.pendingCounts)
	w.recordSkew()
	return w.lease.Advance(ctx, cursor)
}

// recordSkew adds the skew to the run's counts.
func (w *execution) recordSkew() {
	if skew := w.Source.Caller.Skew().Abs(); skew > providerapi.ToleratedSkew {
		w.lease.Counts[SkewSeconds] = int64((skew + time.Second - 1) / time.Second)
	}
}

// waitForOutcomes waits until all of some events have their outcomes. At each poll it checks
// whether the run continues. After a while it records in the run's detail what it waits for.
func (w *execution) waitForOutcomes(ctx context.Context, ids []int64) (status runs.Status, err error) {
	for began := time.Now(); ; {
		n, err := w.Applier.CountPending(ctx, ids)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return runs.Running, w.lease.SetDetail(ctx, "")
		}
		if time.Since(began) >= w.settings.WaitReportDelay {
			if err := w.recordAwaitedOutcomes(ctx, n, ids); err != nil {
				return "", err
			}
		}
		if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return status, errors.Join(err, w.lease.SetDetail(ctx, ""))
		}
		runs.Sleep(ctx, w.settings.RetryDelay)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
}

// recordAwaitedOutcomes records which outcomes the run waits for.
func (w *execution) recordAwaitedOutcomes(ctx context.Context, n int64, ids []int64) error {
	id, reason, err := w.Applier.OldestPending(ctx, ids)
	if err != nil || id == 0 {
		return err
	}
	detail := fmt.Sprintf("waits for the outcomes of %d of its appended events, among them event %d", n, id)
	if reason != "" {
		detail += ", which has failed: " + reason
	}
	return w.lease.SetDetail(ctx, detail)
}
