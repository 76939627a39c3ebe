package ingest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestListRejectionsFiltersAndPages(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	operator := db.Role(t, "operator")
	known, err := events.RegisterSources(t.Context(), db.Pool, map[string]string{"a": "stripe", "b": "stripe"})
	if err != nil {
		t.Fatal(err)
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	if _, err := db.Pool.Exec(t.Context(), `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		SELECT CASE g % 3 WHEN 0 THEN $1::int ELSE $2::int END, CASE g % 2 WHEN 0 THEN 'wrong_signature' ELSE 'stale_timestamp' END, 'd' || g, '', $3::timestamptz + g * interval '1 s',
		  '{}', 'body', CASE g WHEN 1 THEN 900 ELSE 4 END FROM generate_series(1, 12) g`, known.Number["a"], known.Number["b"], day); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		f    ingest.RejectionFilter
		want string
	}{
		"all":    {ingest.RejectionFilter{}, "d12 d11 d10 d9 d8 d7 d6 d5 d4 d3 d2 d1 "},
		"source": {ingest.RejectionFilter{Source: known.Number["a"]}, "d12 d9 d6 d3 "},
		"reason": {ingest.RejectionFilter{Reason: "wrong_signature", Source: known.Number["a"]}, "d12 d6 "},
		"times":  {ingest.RejectionFilter{Since: day.Add(3 * time.Second), Until: day.Add(5 * time.Second)}, "d4 d3 "},
	} {
		for _, limit := range []int{1, 5, 50} {
			got := ""
			for cursor, more := "", true; more; more = cursor != "" {
				page, err := ingest.ListRejections(t.Context(), operator, tc.f, cursor, limit)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range page.Items {
					got += r.Detail + " "
				}
				cursor = page.Next
			}
			if got != tc.want {
				t.Errorf("%s by %d: %q, want %q", name, limit, got, tc.want)
			}
		}
	}
	for id, cut := range map[int64]bool{1: true, 2: false} {
		r, err := ingest.ShowRejection(t.Context(), operator, id)
		if err != nil || r.Cut != cut || r.Text != "body" || r.Detail != fmt.Sprint("d", id) || r.Explanation == "" {
			t.Errorf("rejection %d: %+v, %v", id, r, err)
		}
	}
	if _, err := ingest.ShowRejection(t.Context(), operator, 99); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
}
