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

// kind is a way in which something fails.
type kind struct {
	name string
	// least and most are how long it lasts; weight is how often it comes, beside others of its
	// lane.
	least, most time.Duration
	weight      int
	// begin makes it fail and end mends it. what is a random number of the fault's own.
	begin, end func(ctx context.Context, s *site.Site, what int) error
}

// fault is one failure of a schedule.
type fault struct {
	at, lasts time.Duration
	kind      *kind
	what      int
}

func (f fault) String() string {
	return fmt.Sprintf("%8s  %-28s %8s  #%d", f.at.Round(time.Millisecond), f.kind.name,
		f.lasts.Round(time.Millisecond), f.what)
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

func nothing(context.Context, *site.Site, int) error { return nil }

// lanes are what fails at the same time: our own processes, PostgreSQL, JetStream. Inside a lane
// one thing fails after the other.
func lanes() [][]*kind { return [][]*kind{ours(), postgresql(), jetstream()} }

// ours are the faults of gateways, processors and their disks.
func ours() []*kind {
	gateway := func(s *site.Site, what int) *site.Daemon { return s.Gateways[what%2] }
	processor := func(s *site.Site, what int) *site.Daemon { return s.Processors[what%2] }
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
			func(_ context.Context, s *site.Site, what int) error { gateway(s, what).Kill(); return nil },
			func(_ context.Context, s *site.Site, what int) error { return start(gateway(s, what)) }},
		{"gateway paused", 200 * ms, 3 * sec, 3,
			func(_ context.Context, s *site.Site, what int) error { gateway(s, what).Pause(); return nil },
			func(_ context.Context, s *site.Site, what int) error { gateway(s, what).Resume(); return nil }},
		{"gateway restarted", 0, 0, 2,
			func(_ context.Context, s *site.Site, what int) error { return restarted(gateway(s, what)) }, nothing},
		{"both gateways killed", 0, 500 * ms, 1,
			func(_ context.Context, s *site.Site, _ int) error {
				s.Gateways[0].Kill()
				s.Gateways[1].Kill()
				return nil
			},
			func(_ context.Context, s *site.Site, _ int) error { return start(s.Gateways[:]...) }},
		{diskFull, 2 * sec, 6 * sec, 1, fillDisk, emptyDisk},
		{"processor killed", 0, 3 * sec, 4,
			func(_ context.Context, s *site.Site, what int) error { processor(s, what).Kill(); return nil },
			func(_ context.Context, s *site.Site, what int) error { return start(processor(s, what)) }},
		{"processor paused", 200 * ms, 5 * sec, 3,
			func(_ context.Context, s *site.Site, what int) error { processor(s, what).Pause(); return nil },
			func(_ context.Context, s *site.Site, what int) error { processor(s, what).Resume(); return nil }},
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

// restartProcessor takes one that has ended for one that is to be started: it does not start
// without PostgreSQL.
func restartProcessor(_ context.Context, s *site.Site, what int) error {
	p := s.Processors[what%2]
	if !p.Running() {
		return p.Start()
	}
	return restarted(p)
}

// restarted starts a daemon again that was asked to stop. What hangs at that moment it gives up,
// and ends in order; on a machine that is too busy for that in its time it ends with a status that
// is not 0: a supervisor starts it all the same.
func restarted(d *site.Daemon) error {
	err := d.Restart()
	if err == nil || d.Running() || !strings.Contains(err.Error(), "not done within") {
		return err
	}
	d.LateStops.Add(1)
	return d.Start()
}

// diskFull needs a disk that may be filled.
const diskFull = "gateway's disk full"

// ballast fills the small disk of the first gateway's spool.
const ballast = "ballast"

// fillDisk leaves no byte free on the disk of the first gateway's spool, which is a small one of
// its own.
func fillDisk(_ context.Context, s *site.Site, _ int) error {
	f, err := os.Create(filepath.Join(filepath.Dir(s.Gateways[0].Spool), ballast))
	if err != nil {
		return err
	}
	defer f.Close()
	piece := make([]byte, 1<<16)
	for range 2 * diskBytes / len(piece) {
		if _, err := f.Write(piece); err != nil {
			return nil //nolint:nilerr // no space is left, as wanted
		}
	}
	return errors.New("the gateway's disk has no end")
}

func emptyDisk(_ context.Context, s *site.Site, _ int) error {
	return os.Remove(filepath.Join(filepath.Dir(s.Gateways[0].Spool), ballast))
}

// postgresql are the faults of the primary, its standby, and the ways to them.
func postgresql() []*kind {
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
		{"PostgreSQL's line trickles", 500 * ms, 3 * sec, 2,
			links(func(s *site.Site, i int) { s.Postgres.Links[i].Trickle(1500, 5*ms) }), restore},
		{"PostgreSQL read-only", 500 * ms, 4 * sec, 2,
			func(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.ReadOnly(ctx, true) },
			func(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.ReadOnly(ctx, false) }},
		{"database's clock jumps", sec, 4 * sec, 1,
			func(ctx context.Context, s *site.Site, what int) error {
				return s.Postgres.SetClockSkew(ctx, time.Duration(what%41-20)*sec)
			},
			func(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.SetClockSkew(ctx, 0) }},
	}
}

// promote waits for a standby that has all, as whoever promotes one must.
func promote(ctx context.Context, s *site.Site, _ int) error {
	if !s.Postgres.StandbyInSync() {
		return errors.New("the standby does not follow")
	}
	return s.Postgres.Promote(ctx)
}

func attach(ctx context.Context, s *site.Site, _ int) error { return s.Postgres.AttachStandby(ctx) }

// jetstream are the faults of the three servers and the ways to them.
func jetstream() []*kind {
	one := func(do func(p *site.Process)) func(context.Context, *site.Site, int) error {
		return func(_ context.Context, s *site.Site, what int) error { do(s.NATS.Servers[what%3]); return nil }
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
			func(_ context.Context, s *site.Site, what int) error { return s.NATS.Servers[what%3].Start() }},
		{"NATS server paused", 500 * ms, 5 * sec, 4, one((*site.Process).Pause), one((*site.Process).Resume)},
		{"NATS partitioned", sec, 8 * sec, 3,
			func(_ context.Context, s *site.Site, what int) error {
				s.NATS.Partition(what%3, what/3%2 == 0)
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

// schedule is what fails when, of each lane, made of nothing but the seed and the time. Between two
// faults of a lane are up to calm.
func schedule(seed uint64, lasts, calm time.Duration) [][]fault {
	var all [][]fault
	for i, kinds := range lanes() {
		random := rand.New(rand.NewPCG(seed, uint64(i)+100))
		all = append(all, laneOf(random, kinds, lasts, calm))
	}
	return all
}

func laneOf(random *rand.Rand, kinds []*kind, lasts, calm time.Duration) (faults []fault) {
	var bag []*kind
	for _, k := range kinds {
		for range k.weight {
			bag = append(bag, k)
		}
	}
	random.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
	for at, n := sec+upTo(random, calm), 0; at < lasts; n++ {
		k := bag[n%len(bag)]
		f := fault{at: at, lasts: k.least + upTo(random, k.most-k.least), kind: k, what: random.IntN(1000)}
		faults = append(faults, f)
		at += f.lasts + calm/8 + upTo(random, calm)
	}
	return faults
}

// upTo is a random time of at most most.
func upTo(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most) + 1))
}

// without leaves out what needs the small disk where there is none.
func (d *smallDisk) without(faults [][]fault) [][]fault {
	if d.spool != "" {
		return faults
	}
	for i := range faults {
		faults[i] = slices.DeleteFunc(faults[i], func(f fault) bool { return f.kind.name == diskFull })
	}
	return faults
}
