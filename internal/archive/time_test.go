package archive_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/archive"
)

// A time is read as what it says, or not at all: no word for a zone is taken for UTC, and no date for a number of seconds.
func TestTimesAreRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	fine := at.Add(123456 * time.Microsecond)
	for text, want := range map[string]time.Time{
		"2026-03-01T12:00:00Z": at, "2026-03-01 12:00:00": at, "2026-03-01T12:00:00": at, " 2026-03-01 12:00:00.000 ": at, "2026-03-01": at.Add(-12 * time.Hour),
		"2026-03-01 12:00:00 UTC": at, "2026-03-01 12:00:00 GMT": at, "2026-03-01 12:00:00Z": at, "2026-03-01 12:00:00 Z": at,
		"2026-03-01T07:00:00-05:00": at, "2026-03-01 13:00:00+01": at, "2026-03-01 17:30:00.123456+05:30": fine, "2026-03-01T13:00:00.123456+0100": fine,
		"2026-03-01 13:00:00 +0100": at, "2026-03-01 13:00:00 +01:00": at, "2026-03-01 12:00:00.123456 +0000 UTC": fine,
		"1772366400": at, "1772366400000": at, "1772366400123": at.Add(123 * time.Millisecond), "1772366400123456": fine,
		"1970-01-01T00:00:00Z": time.Unix(0, 0), "9999-12-31T23:59:59Z": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), "": {},
	} {
		if got, err := archive.ReadTime(text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"2026-03-01 12:00:00 EST", "2026-03-01 12:00:00 CEST", "2026-03-01 12:00:00 PDT", "2026-03-01 12:00:00 GMT+3", "2026-03-01 13:00:00+01:00 UTC", "2026-03-01 12:00:00 +0100 UTC",
		"2026", "20260301", "202603011200", "20260301120000", "20260301120000000", "0", "-5", "1e9", "1772366400.5", "4200000000", "1772366400123456789", "99999999999999999999",
		"0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "0000-00-00 00:00:00", "soon",
	} {
		if got, err := archive.ReadTime(text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// A row whose time cannot be told is set aside, and so is one that says it was received in the future: neither is stored under another time.
func TestTimesOfRows(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.order()
	im.Into, im.Map = "hmac", map[string]string{"event_type": "what", "received_at": "got", "occurred_at": "was"}
	var bad []string
	im.Report = func(where string, why error) {
		bad = append(bad, where[strings.LastIndex(where, ":")+1:]+" "+why.Error())
	}
	text := "what,got,was\na,2026-03-01 12:00:00 EST,\nb,1772366400123456,1772366400\nc,,20260301\nd,4070908800,\ne,2026-03-01 12:00:00 GMT,4070908800000\n"
	in.wantImport(t, im, "x.csv", []byte(text), archive.Imported{Read: 5, New: 2, Bad: 3})
	for i, want := range []string{"2 received_at: ", "4 occurred_at: ", "5 it was received at 2099-01-01T00:00:00Z, which is yet to come"} {
		if len(bad) != 3 || !strings.HasPrefix(bad[i], want) {
			t.Errorf("bad %q", bad)
		}
	}
	got := in.rows(t, `SELECT event_type || to_char(received_at AT TIME ZONE 'UTC', ' YYYY-MM-DD HH24:MI:SS.US') || to_char(occurred_at AT TIME ZONE 'UTC', ' YYYY') FROM events ORDER BY 1`)
	if want := []string{"b 2026-03-01 12:00:00.123456 2026", "e 2026-03-01 12:00:00.000000 2099"}; cmp.Diff(want, got) != "" {
		t.Error(cmp.Diff(want, got))
	}
}
