package suite

// Bounds returns the bounds that must hold on two cores, with everything on one machine and bodies
// of 2.4 KB.
func Bounds() []bound {
	var all []bound
	for _, part := range [][]bound{ingestBounds(), answerBounds(), acceptedBounds(), applyBounds(), storedBounds(),
		scanBounds(), effectsBounds(), sizeBounds()} {
		all = append(all, part...)
	}
	return all
}

func ingestBounds() []bound {
	const at64, at256 = "ingest, 64 connections", "ingest, 256 connections"
	return []bound{
		ratio(at64, main64, Postern, Afternoon, "events/s", Rate).atLeast(2),
		ratio(at64, main64, Postern, Bare, "events/s", Rate).atLeast(0.75).aim(0.85),
		ratio(at256, main256, Postern, Afternoon, "events/s", Rate).atLeast(3),
		ratio(at256, main256, Postern, Bare, "events/s", Rate).atLeast(0.75).aim(0.85),
		worst("everything published", "seconds from the load's end to the last event in the stream", "s", Postern,
			publishedWithin, main64, main256).atMost(5),
		worst("nothing left to the republisher", "events that were not published", "", Postern,
			More("left_to_republisher"), main64, main256).atMost(0),
		ratio("CPU per event, all servers, 64 connections", main64, Postern, Bare, "CPU", CPU).atMost(1.4),
		value("allocations on the ingest path", main64, Postern, "allocations of the gateway per delivery", "",
			More("allocations")).atMost(60),
	}
}

func answerBounds() []bound {
	const lower, higher = "acknowledgement at half of afternoon's capacity",
		"acknowledgement at half of Postern's capacity"
	return []bound{
		ratio(lower, halfAfternoon, Postern, Afternoon, "p50", P50).atMost(1),
		ratio(lower, halfAfternoon, Postern, Afternoon, "p99", P99).atMost(1),
		ratio(higher, halfPostern, Postern, Bare, "p99", P99).atMost(1.5),
	}
}

// acceptedBounds protects the other bounds. Rejected deliveries have no latency, so a target that
// rejects under load would look faster.
func acceptedBounds() []bound {
	return []bound{
		worstOfAll("everything accepted", "deliveries not accepted", "", Errors, main64, main256, halfAfternoon,
			halfPostern, floodRow, sustainedRow, growthRow, besideRow).atMost(0),
	}
}

// The bounds of applying. appliedRate applies only on a machine on which bare reaches it, so that
// the bound tests the program and not the machine.
const (
	appliedRate    = 15_000
	sustainedShare = 0.4
)

func applyBounds() []bound {
	const flooded, applied, both = "a flood of one event", "applying, objects updated ten times on average",
		"ingest and applying together"
	return []bound{
		ratio(flooded, floodRow, oneEvent, newEvents, "events/s", Rate).atLeast(1),
		ratio(applied, applyRow, Postern, oneByOne, "events/s", Rate).atLeast(6),
		value(applied+", where bare reaches 15,000", applyRow, Postern, "events/s applied", "/s",
			Rate).atLeast(appliedRate).
			where(reaches(Bare, appliedRate, main64, main256)),
		share(both, sustainedRow, Postern, main64, Postern).atLeast(sustainedShare),
		value(both, sustainedRow, Postern, "growth of the backlog in the second half, as a share of the rate", "",
			perRate("backlog_growth_per_s")).atMost(0.01),
		value(both, sustainedRow, Postern, "largest backlog, in seconds of the rate", "s",
			perRate("backlog_max")).atMost(10),
		worst(both, "events that the republisher published", "", Postern, More("republished"),
			sustainedRow).atMost(0),
	}
}

func sizeBounds() []bound {
	const large = "memory, 256 bodies of 1 MiB at once"
	return []bound{
		ratio("growth, 20 million keys and 5 million events", growthRow, grownTarget, emptyTarget, "CPU",
			CPU).atMost(1.3).aim(1.1),
		value("memory, 10,000 idle connections", idleRow, oneEach,
			"gateway's memory, idle for 7 s after one delivery each", "MiB", More("resident_later_mib")).atMost(250),
		value("memory, 10,000 silent connections", idleRow, noneSent, "gateway's memory, nothing sent", "MiB",
			Memory("gateway")).atMost(250),
		value(large, largeRow, Postern, "gateway's memory / ingest.queue_bytes", "x", perQueue).atMost(2),
		value(large, largeRow, Postern, "share of the deliveries that were accepted", "", takenShare).atLeast(0.25),
		value(large, largeRow, Postern, "deliveries neither accepted nor rejected with 503", "",
			More("other")).atMost(0),
		value("start to ready", startsRow, Postern, "milliseconds until /readyz answers 200", "ms",
			More("readyz_ms")).atMost(500),
	}
}

// perRate divides a number by the sample's rate.
func perRate(name string) Metric {
	return func(s Sample) (float64, bool) {
		v, ok := s.More[name]
		return v / s.Rate, ok && s.Rate > 0
	}
}

// takenShare is the share of the sent deliveries that were accepted.
func takenShare(s Sample) (float64, bool) {
	sent := float64(s.Events + s.Errors)
	return float64(s.Events) / sent, sent > 0
}

// perQueue is the gateway's memory as a multiple of ingest.queue_bytes.
func perQueue(s Sample) (float64, bool) {
	queue := s.More["queue_mib"]
	return s.Memory["gateway"] / queue, queue > 0
}
