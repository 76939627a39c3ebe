package main

// eventMutants break the log: which events are stored once, which receipt a sender gets, and how
// far a reader may read.
func eventMutants() []mutant {
	const group = "event log"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{"internal/events " + tests}}
	}
	return []mutant{
		one("treats an event as a duplicate of another source's event with the same key", "Append",
			"(SELECT k.id FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) AS old",
			"(SELECT k.id FROM event_keys k WHERE k.key = d.key LIMIT 1) AS old"),
		one("treats other content under a stored key as a duplicate",
			"Append_conflict_storesBoth|ListConflicts_filters_selectConflicts|Append_signedVersions_areDuplicates",
			"r.fingerprint, r.unsure = bytes.Clone(answer.Bytes(3)), answer.Bool(4)", "r.unsure = answer.Bool(4)"),
		one("treats other content as another version of an event although the version is unsigned",
			"Append_conflict_storesBoth|ListConflicts_filters_selectConflicts|Append_signedVersions_areDuplicates|"+
				"Append_forgedVersion_isConflict",
			"case !r.receipt.Conflict || !e.VersionSigned:", "case !r.receipt.Conflict:"),
		one("acknowledges a conflict and does not store its content",
			"Append_conflict_storesBoth|ListConflicts_filters_selectConflicts|Append_signedVersions_areDuplicates",
			"if err := insertConflicts(ctx, conn, batch, rows); err != nil {\nreturn err\n}\n", ""),
		one("reads past an uncommitted append", "Bound",
			"for err == nil && len(waitFor) > 0 {", "if err == nil && len(waitFor) > 0 {"),
		one("creates ids below a reader's bound after the clock went back",
			"Bound|Append_missingPartitionOrUsedID_isRetried",
			"SELECT greatest(clock_ms(), (SELECT f.ms FROM log_floor f) + 1) << 20 AS id",
			"SELECT clock_ms() << 20 AS id"),
		one("freezes a bound in a millisecond in which events are still appended", "Bound",
			"return (ms+1)<<20 - 1, nil", "return (ms+2)<<20 - 1, nil"),
		one("returns one receipt for all events of a delivery",
			"Append|Append_manyAPIBatches_shareMessages|Append_repeatedKeyInBatch_isDuplicateOrConflict|"+
				"Append_concurrentDuplicates_storeOneEvent",
			"for _, r := range rows {\nreceipts[r.delivery][r.place] = r.receipt\n}\nfor i := range batch {",
			"for _, r := range rows {\nreceipts[r.delivery][0] = r.receipt\n}\nfor i := range batch {"),
		one("stores the body of only one delivery of a batch",
			"Append|Append_manyAPIBatches_shareMessages|Append_bodies_areInlineIfShort|"+
				"Append_separateBodies_areSeparateDeliveries|Walk_sharedBodies_areReturned|Columns",
			"min(k.id) OVER (PARTITION BY d.delivery) AS delivery_id", "min(k.id) OVER () AS delivery_id"),
		one("acknowledges a duplicate that the standby does not have",
			"Append_duplicateOfUnconfirmedCommit_waitsForStandby",
			"if (fresh || !unsure) && !conflicts {", "if (fresh || unsure) && !conflicts {"),
		one("rejects all events of a day that has no partition", "Append_missingPartitionOrUsedID_isRetried",
			"if noPartition(err) {\nreturn EnsurePartitions(ctx, conn, 2*24*time.Hour)\n}\n", ""),
		one("selects an event at the end of a time range, which belongs to the next range",
			"List|Match|Match_fewMatches_stepsAreBounded|Match_window_readsOnlyItsRows|"+
				"Walk_filters_returnEachEventOnce|List_filters_selectEvents|ListConflicts_filters_selectConflicts",
			"($9::timestamptz IS NULL OR e.occurred_at >= $9) AND ($10::timestamptz IS NULL OR e.occurred_at < $10)",
			"($9::timestamptz IS NULL OR e.occurred_at >= $9) AND ($10::timestamptz IS NULL OR e.occurred_at <= $10)"),
		one("ends a list at the first page without a match",
			"List_pages_coverEverythingOnce|List_fewMatches_pagesAreShort|Page_json_hasDocumentedFields|List",
			"if err == nil && page.Next == \"\" && more {\npage.Next = MakeCursor(first)",
			"if err == nil && page.Next == \"\" && more && len(page.Items) > 0 {\npage.Next = MakeCursor(first)"),
	}
}
