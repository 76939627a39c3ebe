package operations

import (
	"cmp"
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// ReconcileParams select what to compare with the provider's API: one object if its id is given,
// all objects of one or of every type if a type or objects is given, and otherwise the events that
// the provider sent. Type has two names.
type ReconcileParams struct {
	Source      string  `json:"source,omitzero"`
	Account     *string `json:"account,omitzero"`
	AllAccounts bool    `json:"all_accounts,omitzero"`
	Objects     *bool   `json:"objects,omitzero"`
	Type        string  `json:"type,omitzero"`
	ObjectType  string  `json:"object_type,omitzero"`
	ObjectID    string  `json:"object_id,omitzero"`
	Full        bool    `json:"full,omitzero"`
	Since       Time    `json:"since,omitzero"`
	Until       Time    `json:"until,omitzero"`
	DryRun      bool    `json:"dry_run,omitzero"`
	RunRequest
}

// Reconcile queues a reconciliation. A running processor executes it. It returns an error if no
// processor's configuration allows the run. Errors: events.ErrInvalid.
func Reconcile(ctx context.Context, pool *pgxpool.Pool, p ReconcileParams, by Requester) (*StartedRun, error) {
	o, err := p.reconciliation(ctx, pool)
	if err != nil {
		return nil, err
	}
	if err := reconcile.CheckReadable(ctx, pool, o); err != nil {
		return nil, err
	}
	return startRun(ctx, pool, by, "reconcile", runs.Request{Job: reconcile.Job, Params: o}, p.RunRequest,
		selectionTexts(p))
}

// reconciliation returns the parameters of the job. Without a pool they are only checked.
func (p *ReconcileParams) reconciliation(ctx context.Context, pool *pgxpool.Pool) (*reconcile.Params, error) {
	objectType, err := either("type", p.Type, "object_type", p.ObjectType)
	if err != nil {
		return nil, err
	}
	o := &reconcile.Params{Scope: reconcile.Events, Type: objectType, ID: p.ObjectID, Since: p.Since.at,
		Until: p.Until.at, DryRun: p.DryRun, AllAccounts: p.AllAccounts, Full: p.Full, Input: selectionTexts(p)}
	if p.Account != nil {
		o.Account = *p.Account
	}
	switch {
	case o.ID != "":
		o.Scope = reconcile.Object
	case o.Type != "" || p.Objects != nil && *p.Objects:
		o.Scope = reconcile.Objects
	}
	bounded := !p.Since.IsZero() || !p.Until.IsZero()
	switch {
	case p.Source == "":
		return nil, invalid("name the source to reconcile")
	case o.AllAccounts && (p.Account != nil || o.ID != ""):
		return nil, invalid("all_accounts cannot be combined with an account or object: give one of them")
	case p.Objects != nil && *p.Objects != (o.Scope == reconcile.Objects):
		return nil, invalid("objects=%t contradicts the named object or type: give one of them", *p.Objects)
	case o.Full && o.Scope != reconcile.Objects:
		return nil, invalid("full applies to lists of objects: name a type, or set objects")
	case o.Full && bounded:
		return nil, invalid("since and until limit changes, but full lists everything: give one of them")
	case o.ID != "" && o.Type == "":
		return nil, invalid("object %q: name its type too", o.ID)
	case o.ID != "" && bounded:
		return nil, invalid("since and until do not apply to one object, which is always read in its current state")
	case !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until):
		texts := Texts(p)
		return nil, invalid("since %q is not before until %q", texts["since"], texts["until"])
	}
	o.Source, err = sourceNumber(ctx, pool, p.Source)
	return o, err
}

// OverwriteParams name the object to overwrite.
type OverwriteParams struct {
	ObjectKey
	RunRequest
}

// OverwriteObject queues a run that overwrites an object from the provider: the API's current
// response wins over all local history. A running processor executes it. A reason is required.
// Errors: events.ErrInvalid, *SeveralObjectsError.
func OverwriteObject(ctx context.Context, pool *pgxpool.Pool, p OverwriteParams, by Requester) (*StartedRun, error) {
	if strings.TrimSpace(p.Reason) == "" {
		return nil, invalid("give a reason: it is stored with the run")
	}
	k, err := p.key(ctx, pool)
	if err != nil {
		return nil, err
	}
	o := &reconcile.Params{Source: k.Source, Account: k.Account, Scope: reconcile.Object, Type: k.Type, ID: k.ID,
		Overwrite: true, Input: map[string]string{"overwrite": "true", "source": p.Source, "account": k.Account,
			"type": k.Type, "object_id": k.ID}}
	if err := reconcile.CheckReadable(ctx, pool, o); err != nil {
		return nil, err
	}
	selection := selectionTexts(p)
	selection["overwrite"] = "true" // so that a plain reconciliation with the same key is a different request
	return startRun(ctx, pool, by, "objects overwrite", runs.Request{Job: reconcile.Job, Params: o}, p.RunRequest,
		selection)
}

// RefetchParams name the object to refetch.
type RefetchParams struct {
	ObjectKey
	ReasonParams
}

// AddRefetch requests a refetch of an object by a running processor. Errors: events.ErrInvalid,
// *SeveralObjectsError.
func AddRefetch(ctx context.Context, pool *pgxpool.Pool, p RefetchParams, by Requester) (*refetch.Request,
	error) {
	k, err := p.key(ctx, pool)
	if err != nil {
		return nil, err
	}
	readsAPI, err := providerapi.ProcessorReadsAPI(ctx, pool, k.Source)
	if err != nil {
		return nil, err
	}
	if !readsAPI {
		return nil, invalid("no processor reads the API of source %s, so it cannot refetch the object: give the "+
			"source a section api (docs/how-to/reconcile-and-repair.md), wait until a processor has read the "+
			"configuration, and try again",
			p.Source)
	}
	return change(ctx, pool, by, "refetches add", p.Reason,
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*refetch.Request, error) {
			e.Target = auditTarget(k, p.Source)
			return refetch.Add(ctx, tx, k, by.String(), cmp.Or(p.Reason, "requested"))
		})
}

// CancelRefetch cancels a refetch request. Errors: events.ErrInvalid, events.ErrNotFound,
// *SeveralObjectsError.
func CancelRefetch(ctx context.Context, pool *pgxpool.Pool, p RefetchParams,
	by Requester) (*refetch.Request, error) {
	k, err := p.key(ctx, pool)
	if err != nil {
		return nil, err
	}
	return change(ctx, pool, by, "refetches cancel", p.Reason,
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*refetch.Request, error) {
			e.Target = auditTarget(k, p.Source)
			return refetch.Cancel(ctx, tx, k)
		})
}

// auditTarget describes an object for the audit.
func auditTarget(k versioning.Key, source string) string {
	target := map[string]string{"source": source, "type": k.Type, "object_id": k.ID}
	if k.Account != "" {
		target["account"] = k.Account
	}
	return encode(target)
}
