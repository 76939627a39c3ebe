package verify_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/verify"
)

// tells is a gateway that tells of its spool: so many deliveries, told so long ago, and last empty before that; nil: a gateway that does not tell how many, or a spool that was never empty.
func (b *testBundle) tells(t *testing.T, name string, deliveries any, told, empty any) {
	t.Helper()
	b.exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes) VALUES ($1, 'gw-1:/spool', clock_now() - interval '3 hours',
		coalesce(clock_now() - $4::interval, '-infinity'), clock_now() - $3::interval, $2, $2)`, name, deliveries, told, empty)
}

// oldest is when the oldest delivery in a spool was acknowledged, so long ago, as its gateway told.
func (b *testBundle) oldest(t *testing.T, name, ago string) {
	t.Helper()
	b.exec(t, `UPDATE spools SET oldest_at = clock_now() - $2::interval WHERE spool = $1`, name, ago)
}

// toldWaits are what waits in spools, by what the report says of it.
func toldWaits(r *verify.Report) (waits []verify.Wait) {
	for _, w := range r.Waiting {
		if strings.Contains(w.What, "as its gateway told") {
			waits = append(waits, w)
		}
	}
	return waits
}

// What a gateway has acknowledged and told of waits since its spool was last empty, and is a violation beyond the limit, without anybody naming a folder.
func TestToldSpoolsWait(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.tells(t, "drained", 0, "1 second", "1 second")
	if r := b.clean(t); len(toldWaits(r)) != 0 || len(r.Notes) != 0 {
		t.Fatalf("%+v", r)
	}
	b.tells(t, "full", 4711, "1 second", "20 minutes")
	b.tells(t, "new", 2, "1 second", nil)
	o := b.options(t)
	o.Wait = 4 * time.Hour
	r := run(t, o)
	waits := toldWaits(r)
	if len(r.Findings) != 0 || len(r.Notes) != 0 || len(waits) != 2 {
		t.Fatalf("%+v", r)
	}
	for i, want := range []struct {
		name  string
		count int64
		age   time.Duration
	}{{"full", 4711, 20 * time.Minute}, {"new", 2, 3 * time.Hour}} {
		w := waits[i]
		if age := r.At.Sub(w.Since.Time); !strings.Contains(w.What, "spool "+want.name+" (gw-1:/spool)") || w.Count != want.count || age < want.age || age > want.age+30*time.Minute || w.Seconds != age.Seconds() {
			t.Errorf("%+v, want %+v", w, want)
		}
	}
	o.Wait = time.Hour
	if item := found(t, run(t, o), verify.WaitsTooLong, 1); !strings.Contains(item.Detail, "spool new ") || !strings.Contains(item.Mend, "postern spool list") {
		t.Errorf("%+v", item)
	}
	o.Wait = 15 * time.Minute
	found(t, run(t, o), verify.WaitsTooLong, 2)
}

// What is in a spool waits since the oldest of it came, where its gateway told that, and never longer than since the spool was empty: an outage that is over and a drain that goes on are no violation for what came a moment ago.
func TestToldSpoolsWaitSinceTheirOldest(t *testing.T) {
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
		b.tells(t, name, 7, "1 second", c.empty)
		b.oldest(t, name, c.oldest)
		ages[name] = c.age
	}
	o := b.options(t)
	o.Wait = 15 * time.Minute
	r := run(t, o)
	waits := toldWaits(r)
	if len(waits) != len(ages) || len(r.Notes) != 0 {
		t.Fatalf("%+v", r)
	}
	for _, w := range waits {
		name, _, _ := strings.Cut(strings.TrimPrefix(w.What, "deliveries that are acknowledged and in spool "), " (")
		if age := r.At.Sub(w.Since.Time); age < ages[name] || age > ages[name]+time.Minute || w.Count != 7 {
			t.Errorf("%+v, want %s", w, ages[name])
		}
	}
	if item := found(t, r, verify.WaitsTooLong, 1); !strings.Contains(item.Detail, "spool before it was known ") {
		t.Errorf("%+v", item)
	}
}

// Of a spool that nobody has told of for a while nobody knows what is in it: that is a note, whatever was told last.
func TestSilentSpoolsAreNoted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		deliveries, told, empty any
		note                    string
		waits                   int
	}{
		"told a moment ago":         {0, "1 minute", "1 minute", "", 0},
		"empty when it was told of": {0, "10 minutes", "10 minutes", "nobody has told of spool gw (gw-1:/spool) since ", 0},
		"full when it was told of":  {3, "10 minutes", "11 minutes", "(10m", 1},
		"of an earlier version":     {nil, nil, "10 minutes", "it may hold acknowledged deliveries that are not in the log; postern verify --spool DIR ", 0},
		"never told of":             {nil, nil, nil, "nobody has ever told what is in spool gw (gw-1:/spool)", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := empty(t)
			b.tells(t, "gw", c.deliveries, c.told, c.empty)
			r := b.clean(t)
			if notes := strings.Join(r.Notes, "\n"); (notes == "") != (c.note == "") || !strings.Contains(notes, c.note) {
				t.Errorf("%q, want %q", notes, c.note)
			}
			if waits := toldWaits(r); len(waits) != c.waits {
				t.Errorf("%+v", waits)
			}
		})
	}
}

// A spool whose folder is looked at is told of once, by the folder, whatever its gateway told.
func TestAFolderCountsInPlaceOfWhatWasTold(t *testing.T) {
	t.Parallel()
	b := empty(t)
	dir, _ := spooled(t, b.records(t, "a source", "one", "two")...)
	disk, err := spool.Folder(dir)
	if err != nil {
		t.Fatal(err)
	}
	name, err := spool.Name(disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	b.tells(t, name, 5, "2 hours", "2 hours")
	b.tells(t, "another", 7, "1 second", "1 minute")
	r := b.withSpools(t, time.Hour, dir)
	if waits := toldWaits(r); len(r.Findings) != 0 || len(r.Notes) != 0 || len(waits) != 1 || waits[0].Count != 7 {
		t.Errorf("%+v", r)
	}
	if len(r.Spools) != 1 || r.Spools[0].Name != name || r.Spools[0].Waiting != 2 {
		t.Errorf("%+v", r.Spools)
	}
}
