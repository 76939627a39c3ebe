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

// spoolRows and spoolBytes limit how many deliveries are looked up at once.
const (
	spoolRows  = 500
	spoolBytes = 16 << 20
)

// keysDroppedToSQL returns the id below which retention may have deleted keys.
const keysDroppedToSQL = `SELECT coalesce(max(id_to), 0) FROM dropped_partitions WHERE ready_at IS NOT NULL`

// spooledDelivery is a delivery of a spool before it is looked up in the log.
type spooledDelivery struct {
	file *SpoolFile
	at   time.Time
	ingest.SpooledDelivery
}

// spoolCheck checks one spool.
type spoolCheck struct {
	*verification
	Spool
	// keysDroppedTo is the id below which keys may be deleted.
	keysDroppedTo int64
	files         map[string]*SpoolFile
	batch         []spooledDelivery
	bytes         int
}

// checkSpools compares the deliveries in spools with the log. It reads each record before it looks
// it up, so that a delivery that is drained meanwhile is found in the log.
func (w *verification) checkSpools(ctx context.Context) error {
	var keysDroppedTo int64
	if len(w.Spools) > 0 {
		if err := w.Pool.QueryRow(ctx, keysDroppedToSQL).Scan(&keysDroppedTo); err != nil {
			return fmt.Errorf("read the dropped partitions of the log: %w", err)
		}
	}
	for _, dir := range w.Spools {
		s := &spoolCheck{verification: w, Spool: Spool{Dir: dir, Files: []SpoolFile{}}, keysDroppedTo: keysDroppedTo,
			files: map[string]*SpoolFile{}}
		found, err := spool.Inspect(dir, func(f *spool.FileReport, rec spool.Record) error {
			return s.addRecord(ctx, f, rec)
		})
		if err == nil {
			s.Name, err = spool.NameOfFolder(dir)
		}
		if err != nil {
			return fmt.Errorf("%s: %w: check that ingest.spool.dir of a gateway on this machine names the folder, "+
				"and that this account may read it", dir, err)
		}
		if err := s.lookUpBatch(ctx); err != nil {
			return err
		}
		for _, f := range found {
			s.classifyFile(f)
		}
		w.spools = append(w.spools, s.Spool)
	}
	return nil
}

func (s *spoolCheck) file(f *spool.FileReport) *SpoolFile {
	if s.files[f.Name] == nil {
		s.files[f.Name] = &SpoolFile{Name: f.Name, State: f.State}
	}
	return s.files[f.Name]
}

// addRecord adds a record to the batch. A record that cannot be parsed is reported; the gateway
// moves such records out of the spool.
func (s *spoolCheck) addRecord(ctx context.Context, f *spool.FileReport, rec spool.Record) error {
	file := s.file(f)
	file.Deliveries++
	s.progress("spooled", s.results.countChecked("spooled", 1))
	k, err := ingest.DecodeSpooled(rec.Bytes)
	if err != nil {
		file.Waiting++
		s.results.add(SpoolQuarantined,
			Item{File: s.path(file), Detail: fmt.Sprintf("spooled at %s: %v", events.Instant{Time: rec.At}, err)})
		return nil
	}
	s.batch = append(s.batch, spooledDelivery{file, rec.At, k})
	if s.bytes += len(rec.Bytes); len(s.batch) < spoolRows && s.bytes < spoolBytes {
		return nil
	}
	return s.lookUpBatch(ctx)
}

// lookUpBatch looks up the events of the batch in the log. Deliveries of unknown sources are not in
// the log.
func (s *spoolCheck) lookUpBatch(ctx context.Context) error {
	var known []events.Delivery
	for i := range s.batch {
		number, ok := s.Known.Number[s.batch[i].Source]
		if ok {
			s.batch[i].Delivery.Source = number
			known = append(known, s.batch[i].Delivery)
		}
	}
	var appendDryRun events.AppendDryRun
	receipts, err := appendDryRun.Run(ctx, s.Pool, known)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Dir, err)
	}
	for i := range s.batch {
		d := &s.batch[i]
		if _, ok := s.Known.Number[d.Source]; !ok {
			s.countDelivery(d, false)
			continue
		}
		s.countDelivery(d, allStored(receipts[0]))
		receipts = receipts[1:]
	}
	s.batch, s.bytes = s.batch[:0], 0
	return nil
}

// allStored reports whether all events of a delivery are in the log.
func allStored(receipts []events.Receipt) bool {
	for _, r := range receipts {
		if r.ID == 0 {
			return false
		}
	}
	return true
}

// countDelivery counts a delivery, and reports one that no gateway will append.
func (s *spoolCheck) countDelivery(d *spooledDelivery, logged bool) {
	if logged {
		d.file.InLog++
		return
	}
	d.file.Waiting++
	if d.file.Oldest == nil || d.at.Before(d.file.Oldest.Time) {
		d.file.Oldest = &events.Instant{Time: d.at}
	}
	if d.file.State == spool.StatePending {
		return
	}
	if events.FirstID(d.at) < s.keysDroppedTo {
		s.results.note("%d deliveries of spool "+s.Dir+" in quarantined files may have been in the log: retention has "+
			"dropped their partition, and perhaps their keys", 1)
		return
	}
	item := Item{Source: d.Source, File: s.path(d.file),
		Detail: fmt.Sprintf("event %q, acknowledged at %s, is not in the log", d.Delivery.Events[0].Key,
			events.Instant{Time: d.at})}
	kind := SpoolQuarantined
	if d.file.State == spool.StateDamaged {
		kind = SpoolMissingInLog
		item.Repair = fmt.Sprintf("cp -p %s %s", item.File, spool.RestoredName(item.File))
	}
	s.results.add(kind, item)
}

// classifyFile says what happens to a file next, and reports whether acknowledged deliveries may be
// lost.
func (s *spoolCheck) classifyFile(f *spool.FileReport) {
	file := s.file(f)
	file.Bytes, file.Damaged, file.Torn, file.NextStep = f.Bytes, f.LostPlaces, f.TornTail, nextStep(f)
	if f.Unreadable != nil {
		file.Unreadable = f.Unreadable.Error()
	}
	s.Deliveries += file.Deliveries
	s.InLog += file.InLog
	s.Waiting += file.Waiting
	switch path := s.path(file); {
	case f.Unreadable != nil:
		s.results.add(SpoolDamaged, Item{File: path, Detail: fmt.Sprintf("%v; %d deliveries before that can be read",
			f.Unreadable, f.Records)})
	case f.LostPlaces > 0:
		s.results.add(SpoolDamaged,
			Item{File: path, Detail: fmt.Sprintf("at %d places an acknowledged delivery is not "+
				"readable; %d others are", f.LostPlaces, f.Records)})
	case f.TornTail && f.State == spool.StatePending:
		s.results.note(path+" ends with an incomplete record: a gateway is writing it, or ended while it "+
			"wrote; it is not acknowledged", 1)
	case f.TornTail:
		s.results.add(SpoolTorn, Item{File: path, Detail: fmt.Sprintf("it ends with an incomplete record; the %d "+
			"deliveries before that can be read", f.Records)})
	case f.State == spool.StateDamaged && file.Waiting > 0:
	case f.State == spool.StateDamaged:
		s.results.note(path+" is quarantined, and everything readable in it is in the log; it can be removed", 1)
	case f.State == spool.StateQuarantined && file.InLog == 1:
		s.results.note(path+" is in the log; it can be removed", 1)
	}
	s.Files = append(s.Files, *file)
}

// nextStep says what happens to a file next.
func nextStep(f *spool.FileReport) string {
	switch {
	case f.State != spool.StatePending:
		return "needs an operator"
	case f.Unreadable != nil || f.LostPlaces > 0 || f.TornTail:
		return "the readable part is appended, then the file is quarantined"
	case f.Records == 0:
		return "is empty: created in advance, or drained"
	}
	return "is appended, then removed"
}

func (s *spoolCheck) path(f *SpoolFile) string { return filepath.Join(s.Dir, f.Name) }

// reportWaitingInSpools reports the deliveries that wait in spools. A running gateway appends them
// as soon as it can.
func (w *verification) reportWaitingInSpools() {
	for i := range w.spools {
		s, waits := &w.spools[i], waitCount{}
		for _, f := range s.Files {
			if f.State == spool.StatePending && f.Oldest != nil {
				waits.add(f.Oldest.Time)
				waits.count += f.Waiting - 1
			}
		}
		w.reportWaiting("deliveries in spool "+s.Dir+" that are not in the log yet", waits,
			"start the gateway of that folder; if it runs, its log says why it does not append")
	}
}
