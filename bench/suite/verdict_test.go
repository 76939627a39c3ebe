package suite

import (
	"slices"
	"testing"
)

// verdict returns the verdict of the bound with the given name and formula.
func verdict(t *testing.T, s Samples, what, formula string) Verdict {
	t.Helper()
	all := Judge(s, Bounds())
	i := slices.IndexFunc(all, func(v Verdict) bool { return v.What == what && v.Formula == formula })
	if i < 0 {
		t.Fatalf("no bound %q with %q", what, formula)
	}
	return all[i]
}

func TestJudge_atLeastWithAim_status(t *testing.T) {
	t.Parallel()
	const row, what, formula = "closed-64", "ingest, 64 connections", "events/s of postern / events/s of bare"
	for _, c := range []struct {
		name  string
		own   []float64
		want  Status
		aimed bool
	}{
		{"not run", nil, Missing, false},
		{"below", []float64{74, 73, 99}, Fail, false},
		{"at the bound", []float64{75, 75, 1}, Pass, false},
		{"at the aim", []float64{85, 85, 1}, Pass, true},
	} {
		v := verdict(t, append(rates(row, Postern, c.own...), rates(row, Bare, 100, 100, 100)...), what,
			formula)
		if v.Status != c.want || v.Aimed != c.aimed {
			t.Errorf("%s: %s, aimed %v; want %s, %v", c.name, v.Status, v.Aimed, c.want, c.aimed)
		}
	}
}

func TestJudge_atMost_status(t *testing.T) {
	t.Parallel()
	const what, formula = "CPU per event, all servers, 64 connections", "CPU of postern / CPU of bare"
	for cpu, want := range map[float64]Status{139: Pass, 141: Fail} {
		s := Samples{
			{Row: "closed-64", Target: Postern, CPU: map[string]float64{"gateway": cpu - 20, "postgresql": 15,
				"nats": 5}},
			{Row: "closed-64", Target: Bare, CPU: map[string]float64{"bare": 60, "postgresql": 40}},
		}
		if v := verdict(t, s, what, formula); v.Status != want {
			t.Errorf("%.0f: %s, want %s", cpu, v.Status, want)
		}
	}
}

func TestJudge_latePublishingInAnyRow_fails(t *testing.T) {
	t.Parallel()
	const what, formula = "everything published", "seconds from the load's end to the last event in the stream, the " +
		"largest of all rounds"
	after := func(row string, seconds float64) Sample {
		return Sample{Row: row, Target: Postern, More: map[string]float64{"published_within_s": seconds}}
	}
	for _, c := range []struct {
		samples Samples
		want    Status
	}{
		{Samples{after("closed-64", 0.1), after("closed-256", 4.9)}, Pass},
		{Samples{after("closed-64", 0.1), after("closed-64", 0.1), after("closed-64", 5.1)}, Fail},
		{Samples{after("closed-64", 0.1), after("closed-256", -1)}, Fail}, // never
	} {
		if v := verdict(t, c.samples, what, formula); v.Status != c.want {
			t.Errorf("%v: %s (%+v), want %s", c.samples, v.Status, v.Figure, c.want)
		}
	}
}

// A target that rejects some deliveries responds faster to the rest. One rejected delivery of any
// target is too many, in any round of a row whose latencies or rates are compared. Only the row
// large may reject.
func TestJudge_anyDeliveryRejected_fails(t *testing.T) {
	t.Parallel()
	const what, formula = "everything accepted", "deliveries not accepted, the largest of all rounds and targets"
	of := func(row, target string, errors ...int64) (s Samples) {
		for round, n := range errors {
			s = append(s, Sample{Row: row, Target: target, Round: round, Events: 1000, Errors: n})
		}
		return s
	}
	all := func(postern, reference int64) (s Samples) {
		for _, row := range []string{"closed-64", "closed-256", "half-of-afternoon", "half-of-postern"} {
			s = slices.Concat(s, of(row, Postern, 0, 0, postern), of(row, Bare, 0, reference, 0))
		}
		return s
	}
	for _, c := range []struct {
		name    string
		samples Samples
		want    Status
	}{
		{"not run", nil, Missing},
		{"all taken", all(0, 0), Pass},
		{"postern rejects in one of three rounds", all(1, 0), Fail},
		{"a reference rejects", all(0, 1), Fail},
		{"in the open loop only", slices.Concat(all(0, 0), of("half-of-postern", Postern, 7)), Fail},
		{"in a flood", of("flood", oneEvent, 1), Fail},
		{"while applying", of("sustained", Postern, 1), Fail},
		{"in the row large, where it is expected", slices.Concat(all(0, 0), of("large", Postern, 240)),
			Pass},
	} {
		if v := verdict(t, c.samples, what, formula); v.Status != c.want {
			t.Errorf("%s: %s (%+v), want %s", c.name, v.Status, v.Figure, c.want)
		}
	}
}

// The bound of memory has a second one for the share of accepted deliveries: a gateway that rejects
// almost everything needs no memory.
func TestJudge_largeBodies_boundsMemoryAndAcceptedShare(t *testing.T) {
	t.Parallel()
	const what = "memory, 256 bodies of 1 MiB at once"
	for _, c := range []struct {
		taken, mib    float64
		memory, share Status
	}{
		{784, 512, Pass, Pass},
		{784, 513, Fail, Pass},
		{256, 300, Pass, Pass},
		{255, 300, Pass, Fail},
		{0, 60, Pass, Fail},
	} {
		s := Samples{{Row: "large", Target: Postern, Events: int64(c.taken), Errors: 1024 - int64(c.taken),
			Memory: map[string]float64{"gateway": c.mib}, More: map[string]float64{"queue_mib": 256, "other": 0}}}
		if v := verdict(t, s, what, "gateway's memory / ingest.queue_bytes"); v.Status != c.memory {
			t.Errorf("%.0f MiB: %s, want %s", c.mib, v.Status, c.memory)
		}
		if v := verdict(t, s, what, "share of the deliveries that were accepted"); v.Status != c.share {
			t.Errorf("%.0f of 1024 taken: %s, want %s", c.taken, v.Status, c.share)
		}
	}
}

// The bound of 15,000 events per second applies only to a machine on which bare reaches that rate.
func TestJudge_slowMachine_appliedRateIsIdle(t *testing.T) {
	t.Parallel()
	const what, formula = "applying, objects updated ten times on average, where bare reaches 15,000",
		"events/s applied"
	applied := rates("apply", Postern, 9000)
	for bare, want := range map[float64]Status{14_000: Idle, 15_000: Fail} {
		if v := verdict(t, append(applied, rates("closed-256", Bare, bare)...), what, formula); v.Status != want {
			t.Errorf("bare %.0f: %s, want %s", bare, v.Status, want)
		}
	}
}

func TestJudge_sustained_isShareOfIngestAlone(t *testing.T) {
	t.Parallel()
	const what, formula = "ingest and applying together", "events/s of postern / events/s of postern in closed-64"
	alone := rates("closed-64", Postern, 9000, 10_000, 11_000)
	for rate, want := range map[float64]Status{3999: Fail, 4000: Pass} {
		if v := verdict(t, append(rates("sustained", Postern, rate), alone...), what, formula); v.Status != want {
			t.Errorf("%.0f: %s, want %s", rate, v.Status, want)
		}
	}
}
