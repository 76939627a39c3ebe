package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/verify"
)

// delivered returns a delivery of a source with a key; its body concerns no object.
func (b *testBundle) delivered(source, key string) ingest.SpooledDelivery {
	body := []byte(key)
	return ingest.SpooledDelivery{Source: source, Provider: "sim", Delivery: events.Delivery{ReceivedAt: receipt,
		Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: body, Events: []provider.Event{{Key: key, Type: "thing", Fingerprint: provider.BodyFingerprint(body)}}}}
}

// appended appends deliveries, as draining a spool does.
func (b *testBundle) appended(t *testing.T, kept ...ingest.SpooledDelivery) {
	t.Helper()
	for _, k := range kept {
		k.Delivery.Source = b.log.Source
		testkit.Must(t, errOf(events.Append(t.Context(), b.db.Pool, []events.Delivery{k.Delivery})))
	}
}

// spooled returns the folder of a spool that a process has left with some records in one file.
func spooled(t *testing.T, records ...[]byte) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	disk, err := spool.OpenFolder(dir)
	testkit.Must(t, err)
	s, err := spool.Open(disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 64 << 10,
		Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for _, rec := range records {
		testkit.Must(t, s.Append(t.Context(), rec))
	}
	stop()
	testkit.Must(t, <-ended)
	files, err := filepath.Glob(filepath.Join(dir, "*.spool"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	return dir, files[0]
}

func record(t *testing.T, k ingest.SpooledDelivery) []byte {
	t.Helper()
	rec, err := k.Encode()
	testkit.Must(t, err)
	return rec
}

func (b *testBundle) records(t *testing.T, source string, keys ...string) (records [][]byte) {
	t.Helper()
	for _, key := range keys {
		records = append(records, record(t, b.delivered(source, key)))
	}
	return records
}

// withSpools verifies the log and some spools.
func (b *testBundle) withSpools(t *testing.T, wait time.Duration, dirs ...string) *verify.Report {
	t.Helper()
	o := b.options(t)
	o.Spools, o.MaxWait, o.Sources = dirs, wait, nil
	return run(t, o)
}

// A delivery that waits in a spool is reported with its age, and is a violation only when it is too
// old. Deliveries that are in the log do not wait.
func TestVerify_spooledDeliveries_violationOnlyWhenOld(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.appended(t, b.delivered("sim", "in the log"))
	one, _ := spooled(t, b.records(t, b.sourceName(t), "in the log", "first", "second")...)
	two, _ := spooled(t, b.records(t, "a source that the log does not know", "in the log")...)
	r := b.withSpools(t, time.Hour, one, two)
	if len(r.Findings) != 0 || len(r.Spools) != 2 || r.Checked["spooled"] != 4 {
		t.Fatalf("%+v", r)
	}
	if s := r.Spools[0]; s.Dir != one || s.Deliveries != 3 || s.InLog != 1 || s.Waiting != 2 || len(s.Files) != 1 ||
		s.Files[0].Oldest == nil {
		t.Errorf("%+v", s)
	}
	if s := r.Spools[1]; s.Deliveries != 1 || s.InLog != 0 || s.Waiting != 1 {
		t.Errorf("%+v", s)
	}
	var waits []string
	for _, w := range r.Waiting {
		waits = append(waits, fmt.Sprint(w.Work, ": ", w.Count))
	}
	if want := "deliveries in spool " + one + " that are not in the log yet: 2"; !strings.Contains(strings.Join(waits,
		"\n"), want) {
		t.Errorf("no %q in %q", want, waits)
	}
	b.clean(t)
	late := b.withSpools(t, time.Nanosecond, one)
	found(t, late, verify.WaitsTooLong, 2) // the event without an outcome, too
	if item := late.Findings[0].Items[1]; !strings.Contains(item.Detail, one) ||
		!strings.Contains(item.Repair, "start the gateway of that folder") {
		t.Errorf("%+v", item)
	}
	b.appended(t, b.delivered("sim", "first"), b.delivered("sim", "second"))
	if s := b.withSpools(t, time.Hour, one).Spools[0]; s.InLog != 3 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

func (b *testBundle) sourceName(t *testing.T) string {
	t.Helper()
	return b.options(t).Known.Name[b.log.Source]
}

// flip changes a byte of a file.
func flip(t *testing.T, file string, place int) {
	t.Helper()
	bytes, err := os.ReadFile(file)
	testkit.Must(t, err)
	bytes[place] ^= 1
	testkit.Must(t, os.WriteFile(file, bytes, 0o600))
}

// A damaged last delivery looks like an interrupted write.
func TestVerify_quarantinedTornFile_isViolation(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.appended(t, b.delivered("sim", "a"))
	dir, file := spooled(t, b.records(t, b.sourceName(t), "a", "b")...)
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	flip(t, file, len(bytes.TrimRight(text, "\x00"))-1)
	testkit.Must(t, os.Rename(file, file+".damaged"))
	r := b.withSpools(t, time.Hour, dir)
	if item := found(t, r, verify.SpoolTorn, 1); item.File != file+".damaged" || r.Violations() != 1 {
		t.Errorf("%+v", r)
	}
}

// A lost delivery, or one that no gateway will append, is a violation that names the file and the
// repair.
func TestVerify_lostSpoolDeliveries_areViolations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// change damages a folder whose file has "a", which is in the log, and "b" and "c", which
		// are not.
		change func(t *testing.T, dir, file string)
		kind   verify.Kind
		n      int64
		detail string
		repair string
	}{
		"a record that is damaged": {func(t *testing.T, _, file string) { flip(t, file, 100) }, verify.SpoolDamaged, 1,
			"at 1 places", ""},
		"a file that is damaged": {func(t *testing.T, _, file string) { flip(t, file, 20) }, verify.SpoolDamaged, 1,
			"has no segment header", ""},
		"a quarantined file with a missing delivery": {func(t *testing.T, _, file string) {
			testkit.Must(t, os.Rename(file, file+".damaged"))
		}, verify.SpoolMissingInLog, 2, `event "b"`, ".spool.damaged "},
		"a rejected delivery": {func(t *testing.T, dir, file string) {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, "1790000000000000-00.quarantined"), record(t,
				(&testBundle{}).delivered("sim", "d")), 0o600))
		}, verify.SpoolQuarantined, 1, `event "d", acknowledged at 2026-09-21T14:13:20`, ""},
		"an unreadable delivery": {func(t *testing.T, dir, file string) {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, "1790000000000000-00.quarantined"), []byte("odd"), 0o600))
		}, verify.SpoolQuarantined, 1, "decode a spooled delivery", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := empty(t)
			b.appended(t, b.delivered("sim", "a"))
			dir, file := spooled(t, b.records(t, b.sourceName(t), "a", "b", "c")...)
			c.change(t, dir, file)
			item := found(t, b.withSpools(t, time.Hour, dir), c.kind, c.n)
			if !strings.Contains(item.Detail, c.detail) || !strings.Contains(item.Repair, c.repair) ||
				!strings.HasPrefix(item.File, dir) || (c.repair == "") != (item.Repair == "") {
				t.Errorf("%+v", item)
			}
		})
	}
}

// A quarantined file is a note if its deliveries are in the log, or if retention may have deleted
// their keys.
func TestVerify_quarantinedFilesInLog_areNotes(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.appended(t, b.delivered("sim", "a"))
	dir, file := spooled(t, b.records(t, b.sourceName(t), "a")...)
	testkit.Must(t, os.Rename(file, file+".damaged"))
	if r := b.withSpools(t, time.Hour, dir); len(r.Findings) != 0 || len(r.Notes) != 2 ||
		!strings.Contains(r.Notes[0], "everything readable in it is in the log; it can be removed") {
		t.Errorf("%+v", r)
	}
	lost, file := spooled(t, b.records(t, b.sourceName(t), "never seen")...)
	testkit.Must(t, os.Rename(file, file+".damaged"))
	found(t, b.withSpools(t, time.Hour, lost), verify.SpoolMissingInLog, 1)
	b.exec(t, `INSERT INTO dropped_partitions (name, id_from, id_to, retained_to, events, bytes, run, ready_at,
		updated_at)
		VALUES ('events_x', 0, $1, 0, 0, 0, 1, now(), now())`, events.FirstID(time.Now().Add(24*time.Hour)))
	if r := b.withSpools(t, time.Hour, lost); len(r.Findings) != 0 || len(r.Notes) != 2 ||
		!strings.HasPrefix(r.Notes[0], "1 deliveries of spool") {
		t.Errorf("%+v", r)
	}
}

// reportSpool records a gateway's report about its spool: number of deliveries, age of the report,
// and when it was last empty before that. nil means that the gateway does not report the number, or
// that the spool was never empty.
func (b *testBundle) reportSpool(t *testing.T, name string, deliveries any, reported, empty any) {
	t.Helper()
	b.exec(t, `INSERT INTO spools (spool, location, registered_at, drained_at, reported_at, deliveries, bytes)
		VALUES ($1, 'gw-1:/spool', clock_now() - interval '3 hours',
		coalesce(clock_now() - $4::interval, '-infinity'), clock_now() - $3::interval, $2, $2)`,
		name, deliveries, reported, empty)
}

// oldest sets when the oldest delivery in a spool was acknowledged, as reported by its gateway.
func (b *testBundle) oldest(t *testing.T, name, ago string) {
	t.Helper()
	b.exec(t, `UPDATE spools SET oldest_at = clock_now() - $2::interval WHERE spool = $1`, name, ago)
}

// reportedWaits returns the deliveries that wait in spools according to the report.
func reportedWaits(r *verify.Report) (waits []verify.Wait) {
	for _, w := range r.Waiting {
		if strings.Contains(w.Work, "as reported by its gateway") {
			waits = append(waits, w)
		}
	}
	return waits
}

// A reported delivery waits since its spool was last empty, and is a violation beyond the limit,
// without the name of a folder.
func TestVerify_reportedSpool_waitsSinceLastEmpty(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.reportSpool(t, "drained", 0, "1 second", "1 second")
	if r := b.clean(t); len(reportedWaits(r)) != 0 || len(r.Notes) != 0 {
		t.Fatalf("%+v", r)
	}
	b.reportSpool(t, "full", 4711, "1 second", "20 minutes")
	b.reportSpool(t, "new", 2, "1 second", nil)
	o := b.options(t)
	o.MaxWait = 4 * time.Hour
	r := run(t, o)
	waits := reportedWaits(r)
	if len(r.Findings) != 0 || len(r.Notes) != 0 || len(waits) != 2 {
		t.Fatalf("%+v", r)
	}
	for i, want := range []struct {
		name  string
		count int64
		age   time.Duration
	}{{"full", 4711, 20 * time.Minute}, {"new", 2, 3 * time.Hour}} {
		w := waits[i]
		if age := r.At.Sub(w.Since.Time); !strings.Contains(w.Work, "spool "+want.name+" (gw-1:/spool)") ||
			w.Count != want.count || age < want.age || age > want.age+30*time.Minute || w.Seconds != age.Seconds() {
			t.Errorf("%+v, want %+v", w, want)
		}
	}
	o.MaxWait = time.Hour
	if item := found(t, run(t, o), verify.WaitsTooLong, 1); !strings.Contains(item.Detail, "spool new ") ||
		!strings.Contains(item.Repair, "postern spool list") {
		t.Errorf("%+v", item)
	}
	o.MaxWait = 15 * time.Minute
	found(t, run(t, o), verify.WaitsTooLong, 2)
}

// A delivery waits since the oldest one was acknowledged, if its gateway reported that, and never
// longer than since the spool was empty. After an outage, recent deliveries in a draining spool are
// no violation.
func TestVerify_reportedSpoolWithOldest_waitsSinceOldest(t *testing.T) {
	t.Parallel()
	b := empty(t)
	ages := map[string]time.Duration{}
	for name, c := range map[string]struct {
		empty  any
		oldest string
		age    time.Duration
	}{
		"drained for long":    {"20 minutes", "2 minutes", 2 * time.Minute},
		"never empty":         {nil, "3 minutes", 3 * time.Minute},
		"before it was known": {nil, "5 hours", 5 * time.Hour},
		"older than empty":    {"10 minutes", "30 minutes", 10 * time.Minute},
	} {
		b.reportSpool(t, name, 7, "1 second", c.empty)
		b.oldest(t, name, c.oldest)
		ages[name] = c.age
	}
	o := b.options(t)
	o.MaxWait = 15 * time.Minute
	r := run(t, o)
	waits := reportedWaits(r)
	if len(waits) != len(ages) || len(r.Notes) != 0 {
		t.Fatalf("%+v", r)
	}
	for _, w := range waits {
		name, _, _ := strings.Cut(strings.TrimPrefix(w.Work, "acknowledged deliveries in spool "), " (")
		if age := r.At.Sub(w.Since.Time); age < ages[name] || age > ages[name]+time.Minute || w.Count != 7 {
			t.Errorf("%+v, want %s", w, ages[name])
		}
	}
	if item := found(t, r, verify.WaitsTooLong, 1); !strings.Contains(item.Detail, "spool before it was known ") {
		t.Errorf("%+v", item)
	}
}

// A spool without recent reports has unknown content. That is a note, whatever the last report was.
func TestVerify_spoolWithoutReports_isNote(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		deliveries, reported, empty any
		note                        string
		waits                       int
	}{
		"told a moment ago": {0, "1 minute", "1 minute", "", 0},
		"empty at the last report": {0, "10 minutes", "10 minutes",
			"the last report about spool gw (gw-1:/spool) was at ",
			0},
		"full at the last report": {3, "10 minutes", "11 minutes", "(10m", 1},
		"of an earlier version": {nil, nil, "10 minutes", "it may hold acknowledged deliveries that are not in " +
			"the log; postern verify --spool DIR ", 0},
		"never reported": {nil, nil, nil, "the gateway has never reported the content of spool gw (gw-1:/spool)", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := empty(t)
			b.reportSpool(t, "gw", c.deliveries, c.reported, c.empty)
			r := b.clean(t)
			if notes := strings.Join(r.Notes, "\n"); (notes == "") != (c.note == "") ||
				!strings.Contains(notes, c.note) {
				t.Errorf("%q, want %q", notes, c.note)
			}
			if waits := reportedWaits(r); len(waits) != c.waits {
				t.Errorf("%+v", waits)
			}
		})
	}
}

// A spool whose folder is checked is reported once, from the folder, whatever its gateway reported.
func TestVerify_checkedFolder_replacesReport(t *testing.T) {
	t.Parallel()
	b := empty(t)
	dir, _ := spooled(t, b.records(t, "a source", "one", "two")...)
	disk, err := spool.OpenFolder(dir)
	testkit.Must(t, err)
	name, err := spool.Name(disk)
	testkit.Must(t, err)
	testkit.Must(t, disk.Close())
	b.reportSpool(t, name, 5, "2 hours", "2 hours")
	b.reportSpool(t, "another", 7, "1 second", "1 minute")
	r := b.withSpools(t, time.Hour, dir)
	if waits := reportedWaits(r); len(r.Findings) != 0 || len(r.Notes) != 0 || len(waits) != 1 || waits[0].Count != 7 {
		t.Errorf("%+v", r)
	}
	if len(r.Spools) != 1 || r.Spools[0].Name != name || r.Spools[0].Waiting != 2 {
		t.Errorf("%+v", r.Spools)
	}
}
