-- Lets a redaction by value clear conflicts that have the value though the event of their key has not, and rows of bases and of what a rebuild has staged that
-- show it though the mirror does not any more.
-- Locks: none that anybody waits for.
-- +goose Up
-- +goose StatementBegin
-- Clears conflicts, under a run of the job redact that is under way and has begun. Returns how many there were to clear.
CREATE FUNCTION redact_conflicts(p_run bigint, p_conflicts bigint[]) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
DECLARE
  cleared bigint;
BEGIN
  PERFORM FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'redact conflicts: run % is no redaction that is under way', p_run USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE event_conflicts SET body = '', headers = '{}' WHERE id = ANY(p_conflicts) AND (body <> '' OR headers <> '{}');
  GET DIAGNOSTICS cleared = ROW_COUNT;
  UPDATE redactions SET conflicts = conflicts + cleared, updated_at = clock_now() WHERE run = p_run;
  RETURN cleared;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Clears rows of bases or staged, and only there, under a run of the job redact that is under way and has its bound; each as long as it is as it was read, by its
-- updated_at. The version stays. p_locks are the hashes of the objects. Returns how many rows it cleared: whoever hears of fewer reads them again.
CREATE FUNCTION redact_copies(p_run bigint, p_table text, p_locks bigint[], p_sources int[], p_accounts text[], p_types text[], p_ids text[], p_read timestamptz[])
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
DECLARE
  now_at timestamptz := clock_now();
  up_to bigint;
  cleared bigint;
BEGIN
  SELECT r.bound INTO up_to FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR SHARE;
  IF up_to IS NULL OR p_table IS NULL OR p_table NOT IN ('bases', 'staged') THEN
    RAISE EXCEPTION 'redact copies: run % is no redaction that is under way and has its bound, or % is no table of copies', p_run, p_table USING ERRCODE = 'insufficient_privilege';
  END IF;
  -- The locks of applying, in the order of redact_events.
  PERFORM pg_advisory_xact_lock_shared(1886352244, s) FROM (SELECT DISTINCT s FROM unnest(p_sources) AS s ORDER BY 1) s;
  PERFORM pg_advisory_xact_lock(l) FROM (SELECT l FROM unnest(p_locks) AS l UNION SELECT l # 6364136223846793005 FROM unnest(p_locks) AS l ORDER BY 1) l;
  LOCK TABLE staged IN SHARE ROW EXCLUSIVE MODE;
  EXECUTE format($f$
    UPDATE %I o SET tie_set = '[]', overflow = false, ambiguous = false, look_after = 0, state = NULL, repaired = false, state_hash = null_hash(o.deleted),
      exact_hash = null_hash(o.deleted), revision = o.revision + 1, updated_at = greatest($1, o.updated_at + interval '1 microsecond')
    FROM unnest($2, $3, $4, $5, $6) AS t(source, account, object_type, object_id, read_at)
    WHERE o.source = t.source AND o.account = t.account AND o.object_type = t.object_type AND o.object_id = t.object_id AND o.updated_at = t.read_at
      AND o.last_event_id <= $7 AND o.version_at > -9223372036854775808 AND (o.state IS NOT NULL OR o.tie_set <> '[]')$f$, p_table)
  USING now_at, p_sources, p_accounts, p_types, p_ids, p_read, up_to;
  GET DIAGNOSTICS cleared = ROW_COUNT;
  RETURN cleared;
END
$$;
-- +goose StatementEnd
ALTER FUNCTION redact_conflicts(bigint, bigint[]) OWNER TO postern_maintenance;
ALTER FUNCTION redact_copies(bigint, text, bigint[], int[], text[], text[], text[], timestamptz[]) OWNER TO postern_maintenance;
REVOKE EXECUTE ON FUNCTION redact_conflicts(bigint, bigint[]), redact_copies(bigint, text, bigint[], int[], text[], text[], text[], timestamptz[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redact_conflicts(bigint, bigint[]), redact_copies(bigint, text, bigint[], int[], text[], text[], text[], timestamptz[]) TO postern_processor;
-- A redaction by value also looks through conflicts.
GRANT SELECT (id, source, account, body) ON event_conflicts TO postern_processor;
