package main

// ingestMutants break the gateway: when it responds with 200, what it spools while PostgreSQL is
// unavailable, and which limits senders have.
func ingestMutants() []mutant {
	const group = "ingest"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{tests}}
	}
	return []mutant{
		one("responds with 200 although the append failed", "internal/ingest Appender_failedCommit_isNotAcknowledged",
			"for _, w := range batch {\nw.answered(result{err: err})\n}",
			"for _, w := range batch {\nw.answered(result{})\n}"),
		one("responds with 200 when the wait for the commit times out",
			"internal/ingest Handler_databaseStalls_rejectsAtOnce|Queue_spooledDelivery_isNotAppended",
			"if !answered {\nreturn w, errUnavailable\n}", "if !answered {\nr.result = \"accepted\"\nreturn w, nil\n}"),
		one("responds with 200 to a rejected API delivery of which nothing is stored",
			"internal/ingest "+
				"APISource_repeatedKey_returnsReceiptOrConflict|APISource_batchWithConflict_storesNothing|"+
				"APISource_batch_eventsAreSeparateDeliveries|APISource_batch_headersAreTruncated",
			"if w.delivery.Refused(receipts[i]) {\nw.answered(result{err: conflicting(receipts[i])})\ncontinue\n}\n",
			""),
		one("stores a part of an API delivery that it rejects", "internal/events "+
			"Append_unusualContent_isReadBack|Append_rejectConflicts_storesAllOrNothing|"+
			"Append_mixedBatch_eachAsIfAlone|Append_concurrentAPIBatches_storeAllOrNothing",
			"if slices.ContainsFunc(rows, func(r row) bool { return r.receipt.Conflict }) {\nreturn nil\n}\nreturn "+
				"tx.Commit(ctx)", "return tx.Commit(ctx)"),
		one("drops an acknowledged API delivery from the spool because its key was used",
			"internal/ingest APISource_databaseUnavailable_spoolsOnlyIfAllowed",
			"if d.Bodies != nil {\nd.Body = nil\n}\nd.Exact = false\n", "if d.Bodies != nil {\nd.Body = nil\n}\n"),
		one("acknowledges a delivery before its spool record is on disk",
			"internal/spool Acknowledge|Append_stalledDisk_isRejectedAtOnce",
			"if err := g.file.Sync(); err != nil {\nreturn fmt.Errorf(\"sync %s: %w\", g.name, err)\n}\n", ""),
		one("drops spooled deliveries after one failed append",
			"internal/spool Drain_restart_returnsNothingTwice",
			"if err := take(batch); err != nil {\n*g.read = before\nreturn err\n}",
			"if err := take(batch); err != nil {\n_ = before\nreturn err\n}"),
		one("removes a spool file to which a delivery was added meanwhile", "internal/spool TestDrain",
			"case g.end != end:\nreturn false, false\n", "case g.end < end:\nreturn false, false\n"),
		one("removes a spool file while a delivery is written to it", "internal/spool TestDrain",
			"case !s.syncing.IsZero():\nreturn false, true\ndefault:\ns.active = nil",
			"case false:\nreturn false, true\ndefault:\ns.active = nil"),
		one("removes a damaged spool file", "internal/spool Damaged|damaged|Drain_flippedBit_losesOneRecord",
			"bad := g.read == nil || g.read.lost > 0 || g.read.torn || !errors.Is(why, io.EOF)",
			"bad := g.read == nil || !errors.Is(why, io.EOF)"),
		one("keeps verified bodies in memory beyond the limit", "internal/ingest ArriveTogether",
			"if !v.memory.grow(int64(cap(d.Body))) {\nreturn errFull\n}", "v.memory.grow(int64(cap(d.Body)))"),
		one("lets forged deliveries use up the rate limit of a source", "internal/ingest Rate",
			"if !v.ep.limit.open(v.began) {", "if !v.ep.limit.take(v.began) {"),
		one("reads a body whose announced length is over the limit", "internal/ingest "+
			"RateLimit_slowBody_countsWhenVerified|Appender_largeSharedBody_isPublishedWithoutBody|"+
			"Handler_bodyOverLimit_isRejectedUnread|Reject_unreadBodyOfLastRequest_connectionEndsInOrder|"+
			"Handler_slowDatabase_isNoBodyTimeout|ReadBody_concurrentSlowBodies_isNotRejected|"+
			"RejectionStore_truncatedBody_freesTheRest|Semaphore_largeBodies_areLimitedToCPUs|"+
			"Handler_signedUnreadableBody_isStored|Handler_contentEncoding_isRejected|Handler_chunkedBody_isLimited|"+
			"Queue_abandonedBodies_areFreed|Uploads_largeBodies_leaveTheReserveToSmallOnes",
			"if req.ContentLength > v.ep.MaxBody {\nreturn nil, errTooLarge\n}\n", ""),
		one("trusts an X-Forwarded-For address that no trusted proxy wrote", "internal/ingest "+
			"Handler_halfClosedConnection_getsReceipt|AllowFrom_proxies_usesSenderAddress|"+
			"AllowFrom_otherAddress_isRejected|AllowFrom",
			"addr := address(req.RemoteAddr)\nif !among(s.TrustedProxies, addr) {\nreturn addr\n}\n",
			"addr := address(req.RemoteAddr)\n"),
		one("treats a challenge as a delivery", "internal/ingest Challenge|Method",
			"case method == http.MethodPost:\nreturn s.receive(c, v)", "case method != http.MethodHead:\nreturn "+
				"s.receive(c, v)"),
	}
}
