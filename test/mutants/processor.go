package main

// processorMutants break how messages are acknowledged and published again, and how changes are
// sent.
func processorMutants() []mutant {
	const group = "processor"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{"internal/processor " + tests}}
	}
	return []mutant{
		one("acknowledges events before their commit", "Processor_outcomeNotCommitted",
			"p.finish(l, together, p.Apply(work, events.LiveRun, evs))",
			"for i := range together {\n_ = together[i].Ack()\n}\np.finish(l, together, p.Apply(work, "+
				"events.LiveRun, evs))"),
		one("republishes events that are still in the stream", "Republisher_eventWaitsInStream_isNotPublished",
			"events.FirstID(events.Time(frozen).Add(-age-lag.OldestAge)) - 1",
			"events.FirstID(events.Time(frozen).Add(-age)) - 1"),
		one("moves the republisher's cursor past events without an outcome",
			"Republisher_cursor_passesOnlyEventsWithOutcome",
			"checkpoint = missing[0] - 1", "checkpoint = at"),
		one("moves the cursor past young events although an older one has no outcome",
			"Republisher_youngEvents_cursorPassesThoseWithOutcome",
			`stopReason != "" || !complete {`, `stopReason != "" || !complete && false {`),
		one("moves the republisher's cursor back", "Republisher_youngEvents_cursorPassesThoseWithOutcome",
			"max(cursor, until), frozen)", "until, frozen)"),
		one("fills the stream with republished events", "Republisher_streamHalfFull_stops",
			"lag, err := a.p.Conn.Lag(ctx, false)\nif err != nil { return \"\", err }\n"+
				"if a.room = lag.Room(a.p.Settings.AuditShare); a.room == 0 { return full(lag), nil } }\nif len(ids) "+
				"> 0",
			"}\nif len(ids) > 0"),
		one("marks changes as sent although the stream rejected them", "Sender_changeRejected_sendsItAgain",
			"if err != nil { failed = err\ncontinue }\ndone[b.id] = last", "failed = err\ndone[b.id] = last"),
		one("deletes changes that were never sent", "Maintain_",
			"SELECT o.batch FROM outbox o WHERE o.sent_at < clock_now() - $1::interval",
			"SELECT o.batch FROM outbox o WHERE o.created_at < clock_now() - $1::interval"),
	}
}
