-- Keeps the provider's time of an operator's overwrite in a column, so that a redaction, which clears tie_set, does not lose it.
-- Locks: ACCESS EXCLUSIVE on objects, staged and bases, for a moment; no row is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE objects ADD COLUMN overwrite_seen bigint NOT NULL DEFAULT 0;
ALTER TABLE staged ADD COLUMN overwrite_seen bigint NOT NULL DEFAULT 0;
ALTER TABLE bases ADD COLUMN overwrite_seen bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN objects.overwrite_seen IS 'when the refetch began with which an operator overwrote the object, in microseconds of the provider''s clock; 0 where none did';

-- +goose StatementBegin
-- Redacts events and objects as before, and keeps overwrite_seen in the bases.
CREATE OR REPLACE FUNCTION redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources int[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[],
  OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
DECLARE
  now_at timestamptz := clock_now();
  up_to bigint;
  part text;
  all_events bigint[];
  fresh bigint[];
  locked bigint[];
  targets jsonb;
  cleared jsonb;
  laid jsonb;
  gone jsonb;
BEGIN
  INSERT INTO redactions AS a (run, who, reason, asked, requested_by, events, objects, conflicts, rejections, began_at, updated_at)
  SELECT r.run, r.who, r.reason, r.asked, (r.asked->>'requested_by')::bigint, 0, 0, 0, 0, now_at, now_at FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running'
  ON CONFLICT (run) DO NOTHING;
  SELECT r.bound INTO up_to FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR SHARE;
  IF up_to IS NULL THEN
    RAISE EXCEPTION 'redact events: run % is no redaction that is under way and has its bound', p_run USING ERRCODE = 'insufficient_privilege';
  END IF;

  -- One body is all of a delivery's. The events of one were made in one millisecond.
  SELECT array_agg(DISTINCT e.id) INTO all_events FROM (
    SELECT unnest(p_events) AS id
    UNION
    SELECT e.id FROM (SELECT DISTINCT d.delivery_id FROM events d WHERE d.id = ANY(p_events)) d
    CROSS JOIN LATERAL (SELECT e.id FROM events e WHERE e.id >= (d.delivery_id >> 20) << 20 AND e.id <= d.delivery_id | 1048575 AND e.delivery_id = d.delivery_id) e
  ) e;
  all_events := coalesce(all_events, '{}');

  -- The locks of applying in its order: the sources, which only a swap of a rebuild takes alone, then the objects in the mirror and among the staged. At
  -- last who stages bases just now is waited for.
  PERFORM pg_advisory_xact_lock_shared(1886352244, s) FROM (
    SELECT unnest(p_sources) AS s UNION SELECT e.source FROM events e WHERE e.id = ANY(all_events) UNION SELECT o.source FROM outcomes o WHERE o.event_id = ANY(all_events) ORDER BY 1) s;
  SELECT coalesce(array_agg(l), '{}') INTO locked FROM (
    SELECT unnest(p_locks) AS l UNION SELECT unnest(all_events) UNION SELECT o.object FROM outcomes o WHERE o.event_id = ANY(all_events) AND o.object <> 0) l;
  PERFORM pg_advisory_xact_lock(l) FROM (SELECT l FROM unnest(locked) AS l UNION SELECT l # 6364136223846793005 FROM unnest(locked) AS l ORDER BY 1) l;
  LOCK TABLE staged IN SHARE ROW EXCLUSIVE MODE;

  WITH new AS (INSERT INTO redacted (event, run, at) SELECT e, p_run, now_at FROM unnest(all_events) AS e ORDER BY e ON CONFLICT DO NOTHING RETURNING event)
  SELECT coalesce(array_agg(new.event), '{}'), count(*) INTO fresh, cleared_events FROM new;

  -- What is on its way finds its outcome; what is being applied just now is waited for.
  INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
  SELECT e.id, 0, e.source, 0, '', '', '', 'ignored', 'the event was redacted', 0, now_at, 0 FROM events e WHERE e.id = ANY(all_events) ORDER BY e.id ON CONFLICT DO NOTHING;
  UPDATE outcomes SET reason = 'the event was redacted', status = CASE WHEN status = 'failed' THEN 'ignored' ELSE status END, due = NULL
  WHERE event_id = ANY(all_events) AND reason <> 'the event was redacted';
  IF EXISTS (SELECT FROM outcomes o WHERE o.event_id = ANY(all_events) AND o.object <> 0 AND o.object <> ALL(locked)) THEN
    RAISE EXCEPTION 'redact events: one was applied meanwhile' USING ERRCODE = 'serialization_failure';
  END IF;

  -- No temporary table: its maker could have put a trigger on it, which would act as the owner.
  SELECT coalesce(jsonb_agg(jsonb_build_object('source', k.source, 'account', k.account, 'object_type', k.object_type, 'object_id', k.object_id, 'whole', k.whole)), '[]')
  INTO targets FROM (
    SELECT k.source, k.account, k.object_type, k.object_id, bool_or(k.whole) AS whole FROM (
      SELECT o.source, o.account, o.object_type, o.object_id, true AS whole FROM unnest(p_sources, p_accounts, p_types, p_ids) AS o(source, account, object_type, object_id)
      UNION ALL
      SELECT o.source, o.account, o.object_type, o.object_id, false FROM outcomes o WHERE o.event_id = ANY(fresh) AND o.object <> 0) k
    GROUP BY 1, 2, 3, 4) k;

  FOREACH part IN ARRAY ARRAY['objects', 'staged', 'bases'] LOOP
    EXECUTE format($f$
      WITH gone AS (
        UPDATE %I o SET tie_set = '[]', overflow = false, ambiguous = false, look_after = 0, state = NULL, repaired = false, state_hash = null_hash(o.deleted),
          exact_hash = null_hash(o.deleted), revision = o.revision + 1, updated_at = greatest($2, o.updated_at + interval '1 microsecond')
        FROM jsonb_to_recordset($3) AS t(source int, account text, object_type text, object_id text, whole boolean)
        WHERE o.source = t.source AND o.account = t.account AND o.object_type = t.object_type AND o.object_id = t.object_id
          AND o.version_at > -9223372036854775808 AND (o.state IS NOT NULL OR o.tie_set <> '[]')
          AND (t.whole AND o.last_event_id <= $4 OR o.last_event_id = ANY($1)
            OR EXISTS (SELECT FROM outcomes c WHERE c.event_id = ANY($1) AND c.source = o.source AND c.account = o.account AND c.object_type = o.object_type
              AND c.object_id = o.object_id AND c.version = version_json(o.version_final, o.version_at, o.version_seen, o.version_rank)))
        RETURNING o.source, o.account, o.object_type, o.object_id)
      SELECT coalesce(jsonb_agg(to_jsonb(g)), '[]') FROM gone g$f$, part)
    INTO gone USING fresh, now_at, targets, up_to;
    IF part = 'objects' THEN
      cleared := gone;
    END IF;
  END LOOP;

  -- What was cleared stays the newest that a rebuild finds, though the events that made it tell nothing any more. So does from when on what was received counts:
  -- the look that a person had settle the object may be among them, and its row may be past it.
  SELECT coalesce(jsonb_agg(to_jsonb(k)), '[]') INTO laid FROM (
    SELECT t.source, t.account, t.object_type, t.object_id FROM jsonb_to_recordset(cleared) AS t(source int, account text, object_type text, object_id text)
    UNION
    SELECT o.source, o.account, o.object_type, o.object_id FROM jsonb_to_recordset(targets) AS t(source int, account text, object_type text, object_id text)
    JOIN objects o USING (source, account, object_type, object_id) WHERE o.settled <> 0) k;
  FOREACH part IN ARRAY ARRAY['bases', 'staged'] LOOP
    CONTINUE WHEN part = 'staged' AND NOT EXISTS (SELECT FROM runs r WHERE r.job = 'rebuild' AND r.ended_at IS NULL);
    EXECUTE format($f$
      INSERT INTO %I AS b (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank, tie_set, overflow, window_lo, window_hi,
        look_after, ambiguous, deleted, state_hash, exact_hash, state, repaired, last_event_id, revision, rule_version, created_at, updated_at, settled,
        overwrite_seen)
      SELECT o.source, o.account, o.object_type, o.object_id, o.version_final, o.version_at, o.version_seen, o.version_rank, o.tie_set, o.overflow, o.window_lo, o.window_hi,
        o.look_after, o.ambiguous, o.deleted, o.state_hash, o.exact_hash, o.state, o.repaired, o.last_event_id, o.revision, o.rule_version, o.created_at, o.updated_at, o.settled,
        o.overwrite_seen
      FROM jsonb_to_recordset($1) AS t(source int, account text, object_type text, object_id text) JOIN objects o USING (source, account, object_type, object_id)
      ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET
        version_final = excluded.version_final, version_at = excluded.version_at, version_seen = excluded.version_seen, version_rank = excluded.version_rank,
        tie_set = excluded.tie_set, overflow = excluded.overflow, window_lo = excluded.window_lo, window_hi = excluded.window_hi, look_after = excluded.look_after,
        ambiguous = excluded.ambiguous, deleted = excluded.deleted, state_hash = excluded.state_hash, exact_hash = excluded.exact_hash, state = excluded.state,
        repaired = excluded.repaired, last_event_id = excluded.last_event_id, revision = b.revision + 1, rule_version = excluded.rule_version,
        settled = excluded.settled, overwrite_seen = excluded.overwrite_seen,
        updated_at = greatest(excluded.updated_at, b.updated_at + interval '1 microsecond')
      WHERE (b.settled, b.version_final, b.version_at, b.version_seen, b.version_rank) <= (excluded.settled, excluded.version_final, excluded.version_at, excluded.version_seen, excluded.version_rank)$f$, part)
    USING laid;
  END LOOP;

  INSERT INTO outbox (sources, accounts, types, ids, made_at)
  SELECT array_agg(t.source), array_agg(t.account), array_agg(t.object_type), array_agg(t.object_id), now_at
  FROM jsonb_to_recordset(cleared) AS t(source int, account text, object_type text, object_id text) HAVING count(*) > 0;
  cleared_objects := jsonb_array_length(cleared);

  UPDATE event_conflicts SET body = '', headers = '{}' WHERE event = ANY(all_events) AND (body <> '' OR headers <> '{}');
  GET DIAGNOSTICS cleared_conflicts = ROW_COUNT;
  -- Refused deliveries of the same body, before it was sent with the right signature; and those that were looked for.
  DELETE FROM rejections r WHERE r.id = ANY(p_rejections)
    OR r.id IN (SELECT j.id FROM events e JOIN rejections j ON j.source = e.source AND j.body = e.body WHERE e.id = ANY(all_events));
  GET DIAGNOSTICS cleared_rejections = ROW_COUNT;

  UPDATE events SET body = NULL, headers = '{}' WHERE id = ANY(all_events) AND (body IS NOT NULL OR headers <> '{}');

  UPDATE redactions SET events = events + cleared_events, objects = objects + cleared_objects, conflicts = conflicts + cleared_conflicts,
    rejections = rejections + cleared_rejections, updated_at = now_at WHERE run = p_run;
END
$$;
-- +goose StatementEnd
