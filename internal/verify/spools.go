package verify

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/spool"
)

// spoolRows and spoolBytes bound how many kept deliveries are looked up at once.
const (
	spoolRows  = 500
	spoolBytes = 16 << 20
)

// retiredToSQL is behind the last id whose key retention may have forgotten.
const retiredToSQL = `SELECT coalesce(max(hi), 0) FROM retired WHERE ready_at IS NOT NULL`

// keptDelivery is a delivery of a spool that is not looked up yet.
type keptDelivery struct {
	file *SpoolFile
	at   time.Time
	ingest.Kept
}

// spooling looks at one spool.
type spooling struct {
	*work
	Spool
	// forgotten is behind the last id whose key may be forgotten.
	forgotten int64
	files     map[string]*SpoolFile
	batch     []keptDelivery
	bytes     int
}

// lookAtSpools compares what spools hold with the log. Each record is read before it is looked up, so that one which is drained meanwhile is found in the log.
func (w *work) lookAtSpools(ctx context.Context) error {
	var forgotten int64
	if len(w.Spools) > 0 {
		if err := w.Pool.QueryRow(ctx, retiredToSQL).Scan(&forgotten); err != nil {
			return fmt.Errorf("look for the days of the log that retention has dropped: %w", err)
		}
	}
	for _, dir := range w.Spools {
		s := &spooling{work: w, Spool: Spool{Dir: dir, Files: []SpoolFile{}}, forgotten: forgotten, files: map[string]*SpoolFile{}}
		found, err := spool.Look(dir, func(f *spool.Found, rec spool.Record) error { return s.record(ctx, f, rec) })
		if err == nil {
			s.Name, err = spool.NameIn(dir)
		}
		if err != nil {
			return fmt.Errorf("%s: %w: is it the folder that ingest.spool.dir of a gateway on this machine names, and may this account read it?", dir, err)
		}
		if err := s.lookUp(ctx); err != nil {
			return err
		}
		for _, f := range found {
			s.judge(f)
		}
		w.spools = append(w.spools, s.Spool)
	}
	return nil
}

func (s *spooling) file(f *spool.Found) *SpoolFile {
	if s.files[f.Name] == nil {
		s.files[f.Name] = &SpoolFile{Name: f.Name, State: f.State}
	}
	return s.files[f.Name]
}

// record takes a record to be looked up. What nobody can read, the drainer sets apart, or has.
func (s *spooling) record(ctx context.Context, f *spool.Found, rec spool.Record) error {
	file := s.file(f)
	file.Deliveries++
	s.tell("spooled", s.tally.look("spooled", 1))
	k, err := ingest.ReadKept(rec.Bytes)
	if err != nil {
		file.Waiting++
		s.tally.add(SpoolRefused, Item{File: s.path(file), Detail: fmt.Sprintf("kept at %s: %v", events.Instant{Time: rec.At}, err)})
		return nil
	}
	s.batch = append(s.batch, keptDelivery{file, rec.At, k})
	if s.bytes += len(rec.Bytes); len(s.batch) < spoolRows && s.bytes < spoolBytes {
		return nil
	}
	return s.lookUp(ctx)
}

// lookUp looks for the events of some deliveries in the log. Those of a source that the log does not know are not there.
func (s *spooling) lookUp(ctx context.Context) error {
	var known []events.Delivery
	for i := range s.batch {
		number, ok := s.Known.Number[s.batch[i].Source]
		if ok {
			s.batch[i].Delivery.Source = number
			known = append(known, s.batch[i].Delivery)
		}
	}
	var foresight events.Foresight
	receipts, err := foresight.Foresee(ctx, s.Pool, known)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Dir, err)
	}
	for i := range s.batch {
		d := &s.batch[i]
		if _, ok := s.Known.Number[d.Source]; !ok {
			s.found(d, false)
			continue
		}
		s.found(d, all(receipts[0]))
		receipts = receipts[1:]
	}
	s.batch, s.bytes = s.batch[:0], 0
	return nil
}

// all says whether all events of a delivery are in the log.
func all(receipts []events.Receipt) bool {
	for _, r := range receipts {
		if r.ID == 0 {
			return false
		}
	}
	return true
}

// found counts a delivery, and tells of one that nobody will append.
func (s *spooling) found(d *keptDelivery, logged bool) {
	if logged {
		d.file.InLog++
		return
	}
	d.file.Waiting++
	if d.file.Oldest == nil || d.at.Before(d.file.Oldest.Time) {
		d.file.Oldest = &events.Instant{Time: d.at}
	}
	if d.file.State == spool.Kept {
		return
	}
	if events.FirstID(d.at) < s.forgotten {
		s.tally.note("%d deliveries of spool "+s.Dir+" that were set apart may have been in the log: retention has dropped their day, and perhaps their keys", 1)
		return
	}
	item := Item{Source: d.Source, File: s.path(d.file), Detail: fmt.Sprintf("event %q, acknowledged at %s, is not in the log", d.Delivery.Events[0].Key, events.Instant{Time: d.at})}
	kind := SpoolRefused
	if d.file.State == spool.SetApart {
		kind = SpoolNotTaken
		item.Mend = fmt.Sprintf("cp -p %s %s", item.File, spool.Whole(item.File))
	}
	s.tally.add(kind, item)
}

// judge says of a file what becomes of it, and whether something acknowledged may be lost with it.
func (s *spooling) judge(f *spool.Found) {
	file := s.file(f)
	file.Bytes, file.Damaged, file.Torn, file.Then = f.Bytes, f.Lost, f.Torn, then(f)
	if f.Unreadable != nil {
		file.Unreadable = f.Unreadable.Error()
	}
	s.Deliveries += file.Deliveries
	s.InLog += file.InLog
	s.Waiting += file.Waiting
	switch path := s.path(file); {
	case f.Unreadable != nil:
		s.tally.add(SpoolDamaged, Item{File: path, Detail: fmt.Sprintf("%v; %d deliveries before that can be read", f.Unreadable, f.Records)})
	case f.Lost > 0:
		s.tally.add(SpoolDamaged, Item{File: path, Detail: fmt.Sprintf("at %d places there is no whole delivery where one was acknowledged; %d others can be read", f.Lost, f.Records)})
	case f.Torn && f.State == spool.Kept:
		s.tally.note(path+" ends in a record that is not whole: a gateway writes it just now, or has ended while it did; nobody was told that it is kept", 1)
	case f.Torn:
		s.tally.add(SpoolTorn, Item{File: path, Detail: fmt.Sprintf("it ends in a record that is not whole; the %d deliveries before that can be read", f.Records)})
	case f.State == spool.SetApart && file.Waiting > 0:
	case f.State == spool.SetApart:
		s.tally.note(path+" was set apart, and all that can be read of it is in the log; it can be removed", 1)
	case f.State == spool.Refused && file.InLog == 1:
		s.tally.note(path+" is in the log by now; it can be removed", 1)
	}
	s.Files = append(s.Files, *file)
}

// then is what becomes of a file.
func then(f *spool.Found) string {
	switch {
	case f.State != spool.Kept:
		return "stays for a person"
	case f.Unreadable != nil || f.Lost > 0 || f.Torn:
		return "what can be read is appended, then it is set apart"
	case f.Records == 0:
		return "is empty: made ahead, or drained by now"
	}
	return "is appended, then it goes"
}

func (s *spooling) path(f *SpoolFile) string { return filepath.Join(s.Dir, f.Name) }

// spooled tells what waits in spools; a running gateway appends it as soon as it can.
func (w *work) spooled() {
	for i := range w.spools {
		s, waits := &w.spools[i], waiting{}
		for _, f := range s.Files {
			if f.State == spool.Kept && f.Oldest != nil {
				waits.add(f.Oldest.Time)
				waits.count += f.Waiting - 1
			}
		}
		w.wait("deliveries in spool "+s.Dir+" that are not in the log yet", waits, "start the gateway of that folder; if it runs, its log says what keeps it from appending")
	}
}
