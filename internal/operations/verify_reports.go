package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/verify"
)

// VerifyReport is a stored report of postern verify.
type VerifyReport struct {
	ID       int64          `json:"id,string"`
	StoredAt events.Instant `json:"stored_at"`
	// StoredBy is the account and machine that the command reported.
	StoredBy string `json:"stored_by"`
	// AgeSeconds is the time since the snapshot that was checked.
	AgeSeconds float64 `json:"age_seconds"`
	// Violations is the number of violations of all kinds.
	Violations int64 `json:"violations"`
	// Report has no items of its findings: a redaction would have to erase their ids of objects.
	// The command lists them.
	Report verify.Report `json:"report"`
}

// KeptVerifyReports is the number of reports that stay stored.
const KeptVerifyReports = 20

const (
	storeVerifyReportSQL = `INSERT INTO verify_reports (stored_by, report) VALUES ($1, $2) RETURNING id`

	deleteVerifyReportsSQL = `DELETE FROM verify_reports WHERE id <= (SELECT r.id FROM verify_reports r
		ORDER BY r.id DESC OFFSET $1 LIMIT 1)`

	newestVerifyReportSQL = `SELECT r.id, r.stored_at, r.stored_by, clock_now(), r.report FROM verify_reports r
		ORDER BY r.id DESC LIMIT 1`
)

// StoreVerifyReport stores a report, without the items of its findings, and deletes old ones.
func StoreVerifyReport(ctx context.Context, pool *pgxpool.Pool, r *verify.Report, by Requester) error {
	short := *r
	short.Findings = slices.Clone(r.Findings)
	for i := range short.Findings {
		short.Findings[i].Items = nil
	}
	text, err := json.Marshal(&short)
	if err != nil {
		return err
	}
	_, err = change(ctx, pool, by, "verify", "", func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (id int64, err error) {
		if err := tx.QueryRow(ctx, storeVerifyReportSQL, by.String(), text).Scan(&id); err != nil {
			return 0, fmt.Errorf("store the report: %w", err)
		}
		if _, err := tx.Exec(ctx, deleteVerifyReportsSQL, KeptVerifyReports); err != nil {
			return 0, fmt.Errorf("delete old reports: %w", err)
		}
		e.Target = fmt.Sprintf("report %d, violations: %d", id, r.Violations())
		return id, nil
	})
	return err
}

// NewestVerifyReport returns the newest stored report. Errors: events.ErrNotFound.
func NewestVerifyReport(ctx context.Context, pool *pgxpool.Pool, _ struct{}) (*VerifyReport, error) {
	var r VerifyReport
	var now time.Time
	err := pool.QueryRow(ctx, newestVerifyReportSQL).Scan(&r.ID, &r.StoredAt.Time, &r.StoredBy, &now, &r.Report)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("no report is stored; postern verify --store-report stores one: %w", events.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read the newest report: %w", err)
	}
	r.AgeSeconds, r.Violations = now.Sub(r.Report.At.Time).Seconds(), r.Report.Violations()
	return &r, nil
}
