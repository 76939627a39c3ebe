package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/site"
)

// kind is a kind of fault.
type kind struct {
	name string
	// least and most limit the duration. weight is the frequency relative to the other kinds of its
	// group.
	least, most time.Duration
	weight      int
	// begin injects the fault and end repairs it. pick is a random number that chooses, for
	// example, the server.
	begin, end func(ctx context.Context, s *site.Site, pick int) error
}

// fault is one fault of a schedule.
type fault struct {
	at, lasts time.Duration
	kind      *kind
	pick      int
}

func (f fault) String() string {
	return fmt.Sprintf("%8s  %-28s %8s  #%d", f.at.Round(time.Millisecond), f.kind.name,
		f.lasts.Round(time.Millisecond), f.pick)
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

func nothing(context.Context, *site.Site, int) error { return nil }

// faultGroups returns the kinds of faults by what fails: our own processes, PostgreSQL, JetStream.
// Faults of different groups overlap. Faults of one group follow each other.
func faultGroups() [][]*kind { return [][]*kind{ownFaults(), postgresqlFaults(), jetstreamFaults()} }

// ownFaults returns the faults of gateways, processors and their disks.
func ownFaults() []*kind {
	gateway := func(s *site.Site, pick int) *site.Daemon { return s.Gateways[pick%2] }
	processor := func(s *site.Site, pick int) *site.Daemon { return s.Processors[pick%2] }
	start := func(ds ...*site.Daemon) error {
		var errs []error
		for _, d := range ds {
			if !d.Running() {
				errs = append(errs, d.Start())
			}
		}
		return errors.Join(errs...)
	}
	return []*kind{
		{"gateway killed", 0, 2 * sec, 4,
			func(_ context.Context, s *site.Site, pick int) error { gateway(s, pick).Kill(); return nil },
			func(_ context.Context, s *site.Site, pick int) error { return start(gateway(s, pick)) }},
		{"gateway paused", 200 * ms, 3 * sec, 3,
			func(_ context.Context, s *site.Site, pick int) error { gateway(s, pick).Pause(); return nil },
			func(_ context.Context, s *site.Site, pick int) error { gateway(s, pick).Resume(); return nil }},
		{"gateway restarted", 0, 0, 2,
			func(_ context.Context, s *site.Site, pick int) error { return restarted(gateway(s, pick)) }, nothing},
		{"both gateways killed", 0, 500 * ms, 1,
			func(_ context.Context, s *site.Site, _ int) error {
				s.Gateways[0].Kill()
				s.Gateways[1].Kill()
				return nil
			},
			func(_ context.Context, s *site.Site, _ int) error { return start(s.Gateways[:]...) }},
		{diskFull, 2 * sec, 6 * sec, 1, fillDisk, emptyDisk},
		{"processor killed", 0, 3 * sec, 4,
			func(_ context.Context, s *site.Site, pick int) error { processor(s, pick).Kill(); return nil },
			func(_ context.Context, s *site.Site, pick int) error { return start(processor(s, pick)) }},
		{"processor paused", 200 * ms, 5 * sec, 3,
			func(_ context.Context, s *site.Site, pick int) error { processor(s, pick).Pause(); return nil },
			func(_ context.Context, s *site.Site, pick int) error { processor(s, pick).Resume(); return nil }},
		{"processor restarted", 0, 0, 2, restartProcessor, nothing},
		{"both processors killed", sec, 5 * sec, 1,
			func(_ context.Context, s *site.Site, _ int) error {
				s.Processors[0].Kill()
				s.Processors[1].Kill()
				return nil
			},
			func(_ context.Context, s *site.Site, _ int) error { return start(s.Processors[:]...) }},
	}
}

// restartProcessor starts a processor that has ended, because it does not start without PostgreSQL.
func restartProcessor(_ context.Context, s *site.Site, pick int) error {
	p := s.Processors[pick%2]
	if !p.Running() {
		return p.Start()
	}
	return restarted(p)
}

// restarted stops a daemon and starts it again. On a very busy machine a daemon cannot finish its
// requests in time and exits with a status other than 0. A supervisor restarts it nevertheless.
func restarted(d *site.Daemon) error {
	err := d.Restart()
	if err == nil || d.Running() || !strings.Contains(err.Error(), "not done within") {
		return err
	}
	d.LateStops.Add(1)
	return d.Start()
}

// diskFull needs a small disk.
const diskFull = "gateway's disk full"

// ballast is the file that fills the small disk of the first gateway.
const ballast = "ballast"

// fillDisk fills the small disk of the first gateway's spool.
func fillDisk(_ context.Context, s *site.Site, _ int) error {
	f, err := os.Create(filepath.Join(filepath.Dir(s.Gateways[0].Spool), ballast))
	if err != nil {
		return err
	}
	defer f.Close()
	piece := make([]byte, 1<<16)
	for range 2 * diskBytes / len(piece) {
		if _, err := f.Write(piece); err != nil {
			return nil //nolint:nilerr // the disk is full, as intended
		}
	}
	return errors.New("the gateway's disk does not become full")
}

func emptyDisk(_ context.Context, s *site.Site, _ int) error {
	return os.Remove(filepath.Join(filepath.Dir(s.Gateways[0].Spool), ballast))
}

// postgresqlFaults returns the faults of the primary, its standby, and the connections to them.
func postgresqlFaults() []*kind {
	links := func(do func(s *site.Site, i int)) func(context.Context, *site.Site, int) error {
		return func(_ context.Context, s *site.Site, _ int) error {
			for i := range s.Postgres.Links {
				do(s, i)
			}
			return nil
		}
	}
	restore := links(func(s *site.Site, i int) { s.Postgres.Links[i].Restore() })
	resume := func(_ context.Context, s *site.Site, _ int) error { return s.Postgres.Resume() }
	restart := func(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.Start(ctx) }
	return []*kind{
		{"primary killed", 0, 3 * sec, 3,
			func(_ context.Context, s *site.Site, _ int) error { return s.Postgres.Kill(false) }, restart},
		{"primary lost, standby promoted", 0, 2 * sec, 3, promote, attach},
		{"primary paused", 500 * ms, 4 * sec, 3,
			func(_ context.Context, s *site.Site, _ int) error { return s.Postgres.Pause(false) }, resume},
		{"standby killed", 500 * ms, 3 * sec, 2,
			func(_ context.Context, s *site.Site, _ int) error { return s.Postgres.Kill(true) }, restart},
		{"standby paused", 500 * ms, 4 * sec, 3,
			func(_ context.Context, s *site.Site, _ int) error { return s.Postgres.Pause(true) }, resume},
		{"PostgreSQL cut off", 200 * ms, 4 * sec, 3, links(func(s *site.Site, i int) { s.Postgres.Links[i].Cut() }),
			restore},
		{"PostgreSQL hangs", 500 * ms, 5 * sec, 3, links(func(s *site.Site, i int) { s.Postgres.Links[i].Stall() }),
			restore},
		{"PostgreSQL slow", sec, 5 * sec, 2, links(func(s *site.Site, i int) { s.Postgres.Links[i].Delay(20 * ms) }),
			restore},
		{"PostgreSQL's connection trickles", 500 * ms, 3 * sec, 2,
			links(func(s *site.Site, i int) { s.Postgres.Links[i].Trickle(1500, 5*ms) }), restore},
		{"PostgreSQL read-only", 500 * ms, 4 * sec, 2,
			func(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.ReadOnly(ctx, true) },
			func(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.ReadOnly(ctx, false) }},
		{"database's clock jumps", sec, 4 * sec, 1,
			func(ctx context.Context, s *site.Site, pick int) error {
				return s.Postgres.SetClockSkew(ctx, time.Duration(pick%41-20)*sec)
			},
			func(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.SetClockSkew(ctx, 0) }},
	}
}

// promote fails if the standby lacks commits. A standby may only be promoted if it has all.
func promote(ctx context.Context, s *site.Site, _ int) error {
	if !s.Postgres.StandbyInSync() {
		return errors.New("the standby is not in sync")
	}
	return s.Postgres.Promote(ctx)
}

func attach(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.AttachStandby(ctx) }

// jetstreamFaults returns the faults of the three servers and the connections to them.
func jetstreamFaults() []*kind {
	one := func(do func(p *site.Process)) func(context.Context, *site.Site, int) error {
		return func(_ context.Context, s *site.Site, pick int) error { do(s.NATS.Servers[pick%3]); return nil }
	}
	links := func(do func(s *site.Site, i int)) func(context.Context, *site.Site, int) error {
		return func(_ context.Context, s *site.Site, _ int) error {
			for i := range s.NATS.ClientLinks {
				do(s, i)
			}
			return nil
		}
	}
	restore := links(func(s *site.Site, i int) { s.NATS.ClientLinks[i].Restore() })
	return []*kind{
		{"NATS server killed", 0, 4 * sec, 4, one((*site.Process).Kill),
			func(_ context.Context, s *site.Site, pick int) error { return s.NATS.Servers[pick%3].Start() }},
		{"NATS server paused", 500 * ms, 5 * sec, 4, one((*site.Process).Pause), one((*site.Process).Resume)},
		{"NATS partitioned", sec, 8 * sec, 3,
			func(_ context.Context, s *site.Site, pick int) error {
				s.NATS.Partition(pick%3, pick/3%2 == 0)
				return nil
			},
			func(_ context.Context, s *site.Site, _ int) error { s.NATS.Rejoin(); return nil }},
		{"NATS servers restarted in turn", 0, 0, 1, rollNATS, nothing},
		{"NATS wiped", 0, 0, 1, func(_ context.Context, s *site.Site, _ int) error { return s.NATS.Wipe() }, nothing},
		{"NATS cut off", 200 * ms, 4 * sec, 2, links(func(s *site.Site, i int) { s.NATS.ClientLinks[i].Cut() }),
			restore},
		{"NATS hangs", 500 * ms, 4 * sec, 2, links(func(s *site.Site, i int) { s.NATS.ClientLinks[i].Stall() }),
			restore},
		{"NATS slow", sec, 4 * sec, 1, links(func(s *site.Site, i int) { s.NATS.ClientLinks[i].Delay(10 * ms) }),
			restore},
	}
}

func rollNATS(_ context.Context, s *site.Site, _ int) error {
	for i := range s.NATS.Servers {
		if err := s.NATS.Restart(i); err != nil {
			return err
		}
	}
	return nil
}

// schedule returns the faults of each group. They depend only on the arguments. pause is the
// longest pause between two faults of a group.
func schedule(seed uint64, lasts, pause time.Duration) [][]fault {
	var all [][]fault
	for i, kinds := range faultGroups() {
		random := rand.New(rand.NewPCG(seed, uint64(i)+100))
		all = append(all, scheduleGroup(random, kinds, lasts, pause))
	}
	return all
}

func scheduleGroup(random *rand.Rand, kinds []*kind, lasts, pause time.Duration) (faults []fault) {
	var bag []*kind
	for _, k := range kinds {
		for range k.weight {
			bag = append(bag, k)
		}
	}
	random.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
	for at, n := sec+upTo(random, pause), 0; at < lasts; n++ {
		k := bag[n%len(bag)]
		f := fault{at: at, lasts: k.least + upTo(random, k.most-k.least), kind: k, pick: random.IntN(1000)}
		faults = append(faults, f)
		at += f.lasts + pause/8 + upTo(random, pause)
	}
	return faults
}

// upTo returns a random duration of at most most.
func upTo(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most) + 1))
}

// without removes the faults that need the small disk if there is none.
func (d *smallDisk) without(faults [][]fault) [][]fault {
	if d.spool != "" {
		return faults
	}
	for i := range faults {
		faults[i] = slices.DeleteFunc(faults[i], func(f fault) bool { return f.kind.name == diskFull })
	}
	return faults
}
