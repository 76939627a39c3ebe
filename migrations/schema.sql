CREATE SCHEMA mirror;

ALTER SCHEMA mirror OWNER TO postgres;

CREATE SCHEMA postern;

ALTER SCHEMA postern OWNER TO postgres;

CREATE FUNCTION postern.as_bigint(field jsonb) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
  -- The path reads the field once; CASE would read it for each condition.
  SELECT jsonb_path_query_first(field, 'strict $ ? (@.type() == "number" && @ >= -9223372036854775808 '
    '&& @ <= 9223372036854775807 && @.floor() == @)')::bigint
$_$;

ALTER FUNCTION postern.as_bigint(field jsonb) OWNER TO postern_maintenance;

CREATE FUNCTION postern.as_boolean(field jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT CASE field WHEN 'true'::jsonb THEN true WHEN 'false'::jsonb THEN false END
$$;

ALTER FUNCTION postern.as_boolean(field jsonb) OWNER TO postern_maintenance;

CREATE FUNCTION postern.as_indexed_text(field text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
BEGIN
  IF octet_length(field) <= 2000 THEN
    RETURN field;
  END IF;
  RETURN NULL;
END
$$;

ALTER FUNCTION postern.as_indexed_text(field text) OWNER TO postern_maintenance;

CREATE FUNCTION postern.as_numeric(field text) RETURNS numeric
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $_$
BEGIN
  IF octet_length(field) <= 1000 AND field ~ '^-?[0-9]+([.][0-9]+)?$' THEN
    RETURN field::numeric;
  END IF;
  RETURN NULL;
END
$_$;

ALTER FUNCTION postern.as_numeric(field text) OWNER TO postern_maintenance;

CREATE FUNCTION postern.as_time(field text) RETURNS timestamp with time zone
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $_$
BEGIN
  IF field ~ ('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt ]([01][0-9]|2[0-3]):[0-5][0-9]'
      ':([0-5][0-9]([.][0-9]{1,9})?|60)([Zz]|[+-](0[0-9]|1[0-5]):[0-5][0-9])$')
    AND left(field, 4) <> '0000'
    AND substr(field, 9, 2)::int <= extract(day FROM
      make_date(left(field, 4)::int, substr(field, 6, 2)::int, 1) + interval '1 month' - interval '1 day')
  THEN
    RETURN field::timestamptz;
  END IF;
  RETURN NULL;
END
$_$;

ALTER FUNCTION postern.as_time(field text) OWNER TO postern_maintenance;

CREATE FUNCTION postern.as_unix_ms_time(field jsonb) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
  SELECT to_timestamp(round(jsonb_path_query_first(field, 'strict $ ? (@.type() == "number" && @ >= 0 '
    '&& @ < 253402300799000)')::numeric, 3)::float8 / 1000)
$_$;

ALTER FUNCTION postern.as_unix_ms_time(field jsonb) OWNER TO postern_maintenance;

CREATE FUNCTION postern.as_unix_time(field jsonb) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $_$
  SELECT to_timestamp(round(jsonb_path_query_first(field, 'strict $ ? (@.type() == "number" && @ >= 0 '
    '&& @ < 253402300799)')::numeric, 6)::float8)
$_$;

ALTER FUNCTION postern.as_unix_time(field jsonb) OWNER TO postern_maintenance;

CREATE FUNCTION postern.body_json(body bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
  too_large CONSTANT text := '[0-9][eE][+-]?0*(30[1-9]|3[1-9][0-9]|[4-9][0-9]{2}|[1-9][0-9]{3})';
  content text;
BEGIN
  content := convert_from(body, 'UTF8');
  -- Strings that look like such a number are common (hashes), so they are removed before the second
  -- test.
  IF content ~ too_large AND regexp_replace(content, '"(\\.|[^"\\])*"', '""', 'g') ~ too_large THEN
    RETURN NULL;
  END IF;
  RETURN content::jsonb;
EXCEPTION WHEN OTHERS THEN
  RETURN NULL;
END
$$;

ALTER FUNCTION postern.body_json(body bytea) OWNER TO postern_maintenance;

CREATE FUNCTION postern.clock_ms() RETURNS bigint
    LANGUAGE sql
    AS $$SELECT floor(extract(epoch FROM postern.clock_now()) * 1000)::bigint$$;

ALTER FUNCTION postern.clock_ms() OWNER TO postern_maintenance;

CREATE FUNCTION postern.clock_now() RETURNS timestamp with time zone
    LANGUAGE sql
    AS $$SELECT clock_timestamp()$$;

ALTER FUNCTION postern.clock_now() OWNER TO postern_maintenance;

CREATE FUNCTION postern.delete_search_digests() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $$
BEGIN
  NEW.params := NEW.params - 'finds';
  UPDATE redactions SET params = params - 'finds', updated_at = clock_now() WHERE run = NEW.run AND params ? 'finds';
  RETURN NEW;
END
$$;

ALTER FUNCTION postern.delete_search_digests() OWNER TO postern_maintenance;

CREATE FUNCTION postern.drop_redacted_conflict() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(NEW.event);
  IF EXISTS (SELECT FROM postern.redacted_events r WHERE r.event = NEW.event) THEN
    RETURN NULL;
  END IF;
  RETURN NEW;
END
$$;

ALTER FUNCTION postern.drop_redacted_conflict() OWNER TO postern_maintenance;

CREATE FUNCTION postern.end_redaction(p_run bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $$
BEGIN
  PERFORM FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'end redaction: run % is not a running redaction', p_run USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE redactions SET params = params - 'finds', ended_at = clock_now(), updated_at = clock_now()
  WHERE run = p_run AND ended_at IS NULL;
  UPDATE runs SET params = params - 'finds' WHERE run = p_run;
  UPDATE runs r SET detail = 'it named an event that was redacted' WHERE r.detail <> '' AND EXISTS (
    SELECT FROM regexp_matches(r.detail, '\mevent ([0-9]{1,19})\M', 'g') AS m(found)
    JOIN redacted_events d
      ON d.event = CASE WHEN m.found[1]::numeric <= 9223372036854775807 THEN m.found[1]::bigint END);
END
$$;

ALTER FUNCTION postern.end_redaction(p_run bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $$
DECLARE
  day_ms CONSTANT bigint := 86400000;
  lo bigint;
  part text;
  created int := 0;
BEGIN
  IF to_ms - from_ms > 400 * day_ms THEN
    RAISE EXCEPTION 'ensure_partitions: more than 400 days were requested';
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('postern.partitions', 0));
  FOR lo IN SELECT generate_series((from_ms / day_ms) * day_ms, to_ms, day_ms) LOOP
    part := 'events_' || to_char(to_timestamp(lo / 1000) AT TIME ZONE 'UTC', 'YYYYMMDD');
    CONTINUE WHEN to_regclass('postern.' || part) IS NOT NULL;
    EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING ALL)', part);
    EXECUTE format('CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON %I '
      'FOR EACH STATEMENT EXECUTE FUNCTION reject_change()', part);
    EXECUTE format('ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
      part, lo << 20, (lo + day_ms) << 20);
    created := created + 1;
  END LOOP;
  RETURN created;
END
$$;

ALTER FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.event_time(id bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$SELECT to_timestamp((id >> 20) / 1000.0)$$;

ALTER FUNCTION postern.event_time(id bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.new_epoch() RETURNS text
    LANGUAGE sql
    AS $$
  SELECT left(replace(gen_random_uuid()::text, '-', ''), 8)
$$;

ALTER FUNCTION postern.new_epoch() OWNER TO postern_maintenance;

CREATE FUNCTION postern.null_hash(deleted boolean) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
  SELECT sha256(convert_to(CASE WHEN deleted THEN '-null' ELSE '+null' END, 'UTF8'))
$$;

ALTER FUNCTION postern.null_hash(deleted boolean) OWNER TO postern_maintenance;

CREATE FUNCTION postern.provider_time(us bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$
  -- Up to the year 9999: a later time in a hostile body must not make the view unreadable.
  SELECT CASE WHEN us BETWEEN 1 AND 253402300799999999 THEN timestamptz 'epoch' + us * interval '1 microsecond' END
$$;

ALTER FUNCTION postern.provider_time(us bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.raise_floor() RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $$
  UPDATE postern.log_floor SET ms = greatest(ms, postern.clock_ms(), (SELECT max(e.id) >> 20 FROM postern.events e))
  RETURNING ms
$$;

ALTER FUNCTION postern.raise_floor() OWNER TO postern_maintenance;

CREATE FUNCTION postern.redact_conflicts(p_run bigint, p_conflicts bigint[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $$
DECLARE
  cleared bigint;
BEGIN
  PERFORM FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'redact conflicts: run % is not a running redaction', p_run
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE event_conflicts SET body = '', headers = '{}'
  WHERE id = ANY(p_conflicts) AND (body <> '' OR headers <> '{}');
  GET DIAGNOSTICS cleared = ROW_COUNT;
  UPDATE redactions SET conflicts = conflicts + cleared, updated_at = clock_now() WHERE run = p_run;
  RETURN cleared;
END
$$;

ALTER FUNCTION postern.redact_conflicts(p_run bigint, p_conflicts bigint[]) OWNER TO postern_maintenance;

CREATE FUNCTION postern.redact_copies(p_run bigint, p_table text, p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_read timestamp with time zone[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $_$
DECLARE
  now_at timestamptz := clock_now();
  up_to bigint;
  cleared bigint;
BEGIN
  SELECT r.bound INTO up_to FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR SHARE;
  IF up_to IS NULL OR p_table IS NULL OR p_table NOT IN ('retained_objects', 'staged_objects') THEN
    RAISE EXCEPTION 'redact copies: run % is not a running redaction with a bound, or % is no table of copies',
      p_run, p_table USING ERRCODE = 'insufficient_privilege';
  END IF;
  -- The locks of applying, in the order of redact_events.
  PERFORM pg_advisory_xact_lock(l) FROM (
    SELECT l FROM unnest(p_locks) AS l UNION SELECT l # 6364136223846793005 FROM unnest(p_locks) AS l ORDER BY 1) l;
  LOCK TABLE staged_objects IN SHARE ROW EXCLUSIVE MODE;
  EXECUTE format($f$
    UPDATE %I o SET tied_states = '[]', overflow = false, ambiguous = false, refetch_after = 0, state = NULL,
      sanitized = false, state_hash = null_hash(o.deleted), exact_hash = null_hash(o.deleted),
      revision = o.revision + 1, updated_at = greatest($1, o.updated_at + interval '1 microsecond')
    FROM unnest($2, $3, $4, $5, $6) AS t(source, account, object_type, object_id, read_at)
    WHERE o.source = t.source AND o.account = t.account AND o.object_type = t.object_type AND o.object_id = t.object_id
      AND o.updated_at = t.read_at AND o.last_event_id <= $7 AND o.version_at > -9223372036854775808
      AND (o.state IS NOT NULL OR o.tied_states <> '[]')$f$, p_table)
  USING now_at, p_sources, p_accounts, p_types, p_ids, p_read, up_to;
  GET DIAGNOSTICS cleared = ROW_COUNT;
  RETURN cleared;
END
$_$;

ALTER FUNCTION postern.redact_copies(p_run bigint, p_table text, p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_read timestamp with time zone[]) OWNER TO postern_maintenance;

CREATE FUNCTION postern.redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[], OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $_$
DECLARE
  now_at timestamptz := clock_now();
  up_to bigint;
  part text;
  all_events bigint[];
  new_events bigint[];
  locked bigint[];
  targets jsonb;
  cleared jsonb;
  copied jsonb;
  cleared_rows jsonb;
BEGIN
  INSERT INTO redactions AS a
    (run, actor, reason, params, requested_by, events, objects, conflicts, rejections, began_at, updated_at)
  SELECT r.run, r.actor, r.reason, r.params, (r.params->>'requested_by')::bigint, 0, 0, 0, 0, now_at, now_at
  FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running'
  ON CONFLICT (run) DO NOTHING;
  SELECT r.bound INTO up_to FROM runs r WHERE r.run = p_run AND r.job = 'redact' AND r.status = 'running' FOR SHARE;
  IF up_to IS NULL THEN
    RAISE EXCEPTION 'redact events: run % is not a running redaction with a bound', p_run
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  -- A body belongs to the whole delivery. All events of a delivery have the same millisecond in
  -- their ids.
  SELECT array_agg(DISTINCT e.id) INTO all_events FROM (
    SELECT unnest(p_events) AS id
    UNION
    SELECT e.id FROM (SELECT DISTINCT d.delivery_id FROM events d WHERE d.id = ANY(p_events)) d
    CROSS JOIN LATERAL (SELECT e.id FROM events e WHERE e.id >= (d.delivery_id >> 20) << 20
      AND e.id <= d.delivery_id | 1048575 AND e.delivery_id = d.delivery_id) e
  ) e;
  all_events := coalesce(all_events, '{}');
  -- The locks of applying, in its order, of the objects in the mirror and among the staged objects.
  -- The table lock then waits for transactions that stage copies.
  SELECT coalesce(array_agg(l), '{}') INTO locked FROM (
    SELECT unnest(p_locks) AS l
    UNION SELECT unnest(all_events)
    UNION SELECT o.object FROM outcomes o WHERE o.event_id = ANY(all_events) AND o.object <> 0) l;
  PERFORM pg_advisory_xact_lock(l) FROM (
    SELECT l FROM unnest(locked) AS l UNION SELECT l # 6364136223846793005 FROM unnest(locked) AS l ORDER BY 1) l;
  LOCK TABLE staged_objects IN SHARE ROW EXCLUSIVE MODE;
  WITH new AS (
    INSERT INTO redacted_events (event, run, at) SELECT e, p_run, now_at FROM unnest(all_events) AS e ORDER BY e
    ON CONFLICT DO NOTHING RETURNING event)
  SELECT coalesce(array_agg(new.event), '{}'), count(*) INTO new_events, cleared_events FROM new;
  -- An event that is in the stream finds this outcome. A transaction that applies one now was
  -- waited for by the locks.
  INSERT INTO outcomes
    (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
  SELECT e.id, 0, e.source, 0, '', '', '', 'ignored', 'the event was redacted', 0, now_at, 0
  FROM events e WHERE e.id = ANY(all_events) ORDER BY e.id ON CONFLICT DO NOTHING;
  UPDATE outcomes SET reason = 'the event was redacted',
    status = CASE WHEN status = 'failed' THEN 'ignored' ELSE status END, due = NULL
  WHERE event_id = ANY(all_events) AND reason <> 'the event was redacted';
  IF EXISTS (SELECT FROM outcomes o
    WHERE o.event_id = ANY(all_events) AND o.object <> 0 AND o.object <> ALL(locked)) THEN
    RAISE EXCEPTION 'redact events: one was applied meanwhile' USING ERRCODE = 'serialization_failure';
  END IF;
  -- Variables instead of a temporary table: the table's creator could have put a trigger on it,
  -- which would act as the owner of this function.
  SELECT coalesce(jsonb_agg(jsonb_build_object('source', k.source, 'account', k.account, 'object_type', k.object_type,
    'object_id', k.object_id, 'any_version', k.any_version)
    ORDER BY k.source, k.account COLLATE "C", k.object_type COLLATE "C", k.object_id COLLATE "C"), '[]')
  INTO targets FROM (
    SELECT k.source, k.account, k.object_type, k.object_id, bool_or(k.any_version) AS any_version FROM (
      SELECT o.source, o.account, o.object_type, o.object_id, true AS any_version
      FROM unnest(p_sources, p_accounts, p_types, p_ids) AS o(source, account, object_type, object_id)
      UNION ALL
      SELECT o.source, o.account, o.object_type, o.object_id, false
      FROM outcomes o WHERE o.event_id = ANY(new_events) AND o.object <> 0) k
    GROUP BY 1, 2, 3, 4) k;
  -- Lock the rows in the order that all transactions use.
  PERFORM FROM jsonb_to_recordset(targets) AS t(source int, account text, object_type text, object_id text)
  CROSS JOIN LATERAL (SELECT FROM objects o WHERE o.source = t.source AND o.account = t.account
    AND o.object_type = t.object_type AND o.object_id = t.object_id LIMIT 1 FOR NO KEY UPDATE) o;
  FOREACH part IN ARRAY ARRAY['objects', 'staged_objects', 'retained_objects'] LOOP
    EXECUTE format($f$
      WITH cleared AS (
        UPDATE %I o SET tied_states = '[]', overflow = false, ambiguous = false, refetch_after = 0, state = NULL,
          sanitized = false, state_hash = null_hash(o.deleted), exact_hash = null_hash(o.deleted),
          revision = o.revision + 1, updated_at = greatest($2, o.updated_at + interval '1 microsecond')
        FROM jsonb_to_recordset($3) AS t(source int, account text, object_type text, object_id text,
          any_version boolean)
        WHERE o.source = t.source AND o.account = t.account AND o.object_type = t.object_type
          AND o.object_id = t.object_id
          AND o.version_at > -9223372036854775808 AND (o.state IS NOT NULL OR o.tied_states <> '[]')
          AND (t.any_version AND o.last_event_id <= $4 OR o.last_event_id = ANY($1)
            OR EXISTS (SELECT FROM outcomes c WHERE c.event_id = ANY($1) AND c.source = o.source
              AND c.account = o.account AND c.object_type = o.object_type AND c.object_id = o.object_id
              AND c.version = version_json(o.version_final, o.version_at, o.version_seen, o.version_rank)))
        RETURNING o.source, o.account, o.object_type, o.object_id)
      SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM cleared c$f$, part)
    INTO cleared_rows USING new_events, now_at, targets, up_to;
    IF part = 'objects' THEN
      cleared := cleared_rows;
    END IF;
  END LOOP;
  -- A rebuild must still find the cleared row as the newest, although the events that made it are
  -- empty now. The same holds for overwritten_at: the refetch that an operator overwrote the object
  -- with may be among the redacted events, and the row may be newer than that refetch.
  SELECT coalesce(jsonb_agg(to_jsonb(k)), '[]') INTO copied FROM (
    SELECT t.source, t.account, t.object_type, t.object_id
    FROM jsonb_to_recordset(cleared) AS t(source int, account text, object_type text, object_id text)
    UNION
    SELECT o.source, o.account, o.object_type, o.object_id
    FROM jsonb_to_recordset(targets) AS t(source int, account text, object_type text, object_id text)
    JOIN objects o USING (source, account, object_type, object_id) WHERE o.overwritten_at <> 0) k;
  FOREACH part IN ARRAY ARRAY['retained_objects', 'staged_objects'] LOOP
    CONTINUE WHEN part = 'staged_objects'
      AND NOT EXISTS (SELECT FROM runs r WHERE r.job = 'rebuild' AND r.ended_at IS NULL);
    EXECUTE format($f$
      INSERT INTO %I AS b (source, account, object_type, object_id, version_final, version_at, version_seen,
        version_rank, tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash,
        exact_hash, state, sanitized, last_event_id, revision, rule_version, created_at, updated_at, overwritten_at,
        overwrite_seen)
      SELECT o.source, o.account, o.object_type, o.object_id, o.version_final, o.version_at, o.version_seen,
        o.version_rank, o.tied_states, o.overflow, o.time_from, o.time_to, o.refetch_after, o.ambiguous, o.deleted,
        o.state_hash, o.exact_hash, o.state, o.sanitized, o.last_event_id, o.revision, o.rule_version, o.created_at,
        o.updated_at, o.overwritten_at, o.overwrite_seen
      FROM jsonb_to_recordset($1) AS t(source int, account text, object_type text, object_id text)
      JOIN objects o USING (source, account, object_type, object_id)
      ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET
        version_final = excluded.version_final, version_at = excluded.version_at,
        version_seen = excluded.version_seen, version_rank = excluded.version_rank,
        tied_states = excluded.tied_states, overflow = excluded.overflow, time_from = excluded.time_from,
        time_to = excluded.time_to, refetch_after = excluded.refetch_after, ambiguous = excluded.ambiguous,
        deleted = excluded.deleted, state_hash = excluded.state_hash, exact_hash = excluded.exact_hash,
        state = excluded.state, sanitized = excluded.sanitized, last_event_id = excluded.last_event_id,
        revision = b.revision + 1, rule_version = excluded.rule_version, overwritten_at = excluded.overwritten_at,
        overwrite_seen = excluded.overwrite_seen,
        updated_at = greatest(excluded.updated_at, b.updated_at + interval '1 microsecond')
      WHERE (b.overwritten_at, b.version_final, b.version_at, b.version_seen, b.version_rank)
        <= (excluded.overwritten_at, excluded.version_final, excluded.version_at, excluded.version_seen,
          excluded.version_rank)$f$, part)
    USING copied;
  END LOOP;
  INSERT INTO outbox (sources, accounts, types, ids, created_at, forward_pending)
  SELECT array_agg(t.source), array_agg(t.account), array_agg(t.object_type), array_agg(t.object_id), now_at, true
  FROM jsonb_to_recordset(cleared) AS t(source int, account text, object_type text, object_id text)
  HAVING count(*) > 0;
  cleared_objects := jsonb_array_length(cleared);
  UPDATE event_conflicts SET body = '', headers = '{}'
  WHERE event = ANY(all_events) AND (body <> '' OR headers <> '{}');
  GET DIAGNOSTICS cleared_conflicts = ROW_COUNT;
  -- Rejected deliveries with the same body (it was sent before with an invalid signature), and
  -- those that the caller selected.
  DELETE FROM rejections r WHERE r.id = ANY(p_rejections)
    OR r.id IN (SELECT j.id FROM events e JOIN rejections j ON j.source = e.source AND j.body = e.body
      WHERE e.id = ANY(all_events));
  GET DIAGNOSTICS cleared_rejections = ROW_COUNT;
  UPDATE events SET body = NULL, headers = '{}' WHERE id = ANY(all_events) AND (body IS NOT NULL OR headers <> '{}');
  UPDATE redactions SET events = events + cleared_events, objects = objects + cleared_objects,
    conflicts = conflicts + cleared_conflicts, rejections = rejections + cleared_rejections, updated_at = now_at
  WHERE run = p_run;
END
$_$;

ALTER FUNCTION postern.redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[], OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.reject_audit_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION 'the audit trail is append-only: % is rejected', lower(TG_OP)
    USING ERRCODE = 'insufficient_privilege';
END
$$;

ALTER FUNCTION postern.reject_audit_change() OWNER TO postern_maintenance;

CREATE FUNCTION postern.reject_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    -- A role that may write both tables may clear body and headers of a redacted event. Nothing
    -- else may change.
    OLD.body := NULL;
    OLD.headers := '{}';
    IF OLD IS NOT DISTINCT FROM NEW AND EXISTS (SELECT FROM postern.redacted_events r WHERE r.event = NEW.id) THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'the event log is append-only: % on % is rejected', lower(TG_OP), TG_TABLE_NAME
    USING ERRCODE = 'insufficient_privilege',
      HINT = 'retention drops whole partitions, and postern redact clears events; nothing else changes a stored event';
END
$$;

ALTER FUNCTION postern.reject_change() OWNER TO postern_maintenance;

CREATE FUNCTION postern.server_identity() RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
  RETURN (SELECT system_identifier FROM pg_control_system())
    || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
    || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN OTHERS THEN
  RETURN '';
END
$$;

ALTER FUNCTION postern.server_identity() OWNER TO postern_maintenance;

CREATE FUNCTION postern.version_json(final boolean, at bigint, seen bigint, rank smallint) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
  SELECT CASE WHEN at > -9223372036854775808
    THEN jsonb_build_object('final', final, 'at', at, 'seen', seen, 'rank', rank) END
$$;

ALTER FUNCTION postern.version_json(final boolean, at bigint, seen bigint, rank smallint) OWNER TO postern_maintenance;

CREATE TABLE postern.change_feed (
    only_row boolean DEFAULT true NOT NULL,
    newest bigint NOT NULL,
    server text NOT NULL,
    epochs text[] NOT NULL,
    epoch_starts bigint[] NOT NULL,
    CONSTRAINT change_feed_only_row_check CHECK (only_row)
);

ALTER TABLE postern.change_feed OWNER TO postern_maintenance;

COMMENT ON TABLE postern.change_feed IS 'One row: the newest number of table changes, and the epochs of the numbers. A database that was restored from a backup begins a new epoch, because it may assign numbers again that readers have seen.';

COMMENT ON COLUMN postern.change_feed.only_row IS 'True.';

COMMENT ON COLUMN postern.change_feed.newest IS 'The newest number.';

COMMENT ON COLUMN postern.change_feed.server IS 'The server, the database and the timeline when numbers were last assigned.';

COMMENT ON COLUMN postern.change_feed.epochs IS 'Names of the epochs, the current one last.';

COMMENT ON COLUMN postern.change_feed.epoch_starts IS 'The newest number when each epoch began. Parallel to epochs.';

CREATE VIEW mirror.change_feed AS
 SELECT f.epochs[cardinality(f.epochs)] AS epoch,
    f.newest,
    ( SELECT jsonb_object_agg(f.epochs[i.i], LEAST(f.newest, ( SELECT min(s.s) AS min
                   FROM unnest(f.epoch_starts[(i.i + 1):]) s(s)))) AS jsonb_object_agg
           FROM generate_subscripts(f.epochs, 1) i(i)) AS valid_up_to
   FROM postern.change_feed f;

ALTER TABLE mirror.change_feed OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.change_feed IS 'The newest number of mirror.changes, and the epoch of the numbers.';

COMMENT ON COLUMN mirror.change_feed.epoch IS 'Name of the epoch. A restore from a backup begins a new one.';

COMMENT ON COLUMN mirror.change_feed.valid_up_to IS 'For each epoch, the greatest number from which a reader may continue. A reader with a greater number, or of an epoch that is not here, starts again at 0.';

CREATE TABLE postern.changes (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    number bigint NOT NULL,
    changed_at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05');

ALTER TABLE postern.changes OWNER TO postern_maintenance;

COMMENT ON TABLE postern.changes IS 'The last change of each object, by its number. Numbers are assigned after the commit of the change, in one order, so that a reader who continues after a number skips no object.';

COMMENT ON COLUMN postern.changes.source IS 'Number of the source.';

COMMENT ON COLUMN postern.changes.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.changes.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.changes.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.changes.number IS 'Number of the change. An object that changes again gets a greater number.';

COMMENT ON COLUMN postern.changes.changed_at IS 'Time of the change, or of the change with the previous number if that is later.';

CREATE TABLE postern.objects (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    version_final boolean NOT NULL,
    version_at bigint NOT NULL,
    version_seen bigint NOT NULL,
    version_rank smallint NOT NULL,
    tied_states jsonb NOT NULL,
    overflow boolean NOT NULL,
    time_from bigint NOT NULL,
    time_to bigint NOT NULL,
    refetch_after bigint NOT NULL,
    ambiguous boolean NOT NULL,
    deleted boolean NOT NULL,
    state_hash bytea NOT NULL,
    exact_hash bytea NOT NULL,
    state jsonb,
    sanitized boolean NOT NULL,
    last_event_id bigint NOT NULL,
    revision bigint NOT NULL,
    rule_version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    overwritten_at bigint DEFAULT 0 NOT NULL,
    overwrite_seen bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
ALTER TABLE ONLY postern.objects ALTER COLUMN account SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN object_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN object_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN tied_states SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN tied_states SET COMPRESSION lz4;
ALTER TABLE ONLY postern.objects ALTER COLUMN state_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN exact_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN state SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN state SET COMPRESSION lz4;

ALTER TABLE postern.objects OWNER TO postern_maintenance;

COMMENT ON TABLE postern.objects IS 'The mirror: one row per object of a provider. Columns version_*, time_* and refetch_after are microseconds on the provider''s clock.';

COMMENT ON COLUMN postern.objects.source IS 'Number of the source.';

COMMENT ON COLUMN postern.objects.account IS 'Tenant inside the source. Empty where there is none.';

COMMENT ON COLUMN postern.objects.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.objects.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.objects.version_final IS 'True after a permanent delete. No later version can replace it.';

COMMENT ON COLUMN postern.objects.version_at IS 'Event time of the version. -2^63 means that there is no version yet.';

COMMENT ON COLUMN postern.objects.version_seen IS 'Start of the refetch that read the version. 0 for a version from an event.';

COMMENT ON COLUMN postern.objects.version_rank IS 'Order of versions that have the same time.';

COMMENT ON COLUMN postern.objects.tied_states IS 'All different contents of exactly this version.';

COMMENT ON COLUMN postern.objects.overflow IS 'There were more tied states than the set may hold.';

COMMENT ON COLUMN postern.objects.time_from IS 'Start of the interval in which the state was observed.';

COMMENT ON COLUMN postern.objects.time_to IS 'End of the interval in which the state was observed.';

COMMENT ON COLUMN postern.objects.refetch_after IS 'A refetch that starts after this time is pending. 0 where none is.';

COMMENT ON COLUMN postern.objects.ambiguous IS 'The tied states do not tell which of them is current.';

COMMENT ON COLUMN postern.objects.deleted IS 'The object does not exist any more; the row is its tombstone.';

COMMENT ON COLUMN postern.objects.state_hash IS 'Hash of the state without ignored paths. Equal hashes mean an unchanged object.';

COMMENT ON COLUMN postern.objects.exact_hash IS 'Hash of the whole state.';

COMMENT ON COLUMN postern.objects.state IS 'The object''s state. Null after redaction, or where the provider sent none.';

COMMENT ON COLUMN postern.objects.sanitized IS 'The state contained text or numbers that jsonb refuses. They were replaced; the event''s body keeps the original.';

COMMENT ON COLUMN postern.objects.last_event_id IS 'Event that made the current version.';

COMMENT ON COLUMN postern.objects.revision IS 'Grows with each change of state, deleted or ambiguous.';

COMMENT ON COLUMN postern.objects.rule_version IS 'Version of the version rule that decided the row.';

COMMENT ON COLUMN postern.objects.created_at IS 'Time at which the row was inserted.';

COMMENT ON COLUMN postern.objects.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.objects.overwritten_at IS 'Time at which an operator overwrote the object from the provider, in microseconds of the database clock. Events received before do not count. 0 where no operator did.';

COMMENT ON COLUMN postern.objects.overwrite_seen IS 'Start of the refetch that an operator overwrote the object with, in microseconds on the provider''s clock. 0 where no operator did.';

CREATE TABLE postern.sources (
    number integer NOT NULL,
    name text NOT NULL,
    provider text NOT NULL,
    added_at timestamp with time zone DEFAULT postern.clock_now() NOT NULL,
    api_reads text[]
);

ALTER TABLE postern.sources OWNER TO postern_maintenance;

COMMENT ON TABLE postern.sources IS 'Configured sources by name. A renamed source is a new source.';

COMMENT ON COLUMN postern.sources.number IS 'Number that other tables store instead of the name.';

COMMENT ON COLUMN postern.sources.name IS 'Name of the source in the configuration.';

COMMENT ON COLUMN postern.sources.provider IS 'Provider that the source was configured with when it was registered.';

COMMENT ON COLUMN postern.sources.added_at IS 'Time at which the source was registered.';

COMMENT ON COLUMN postern.sources.api_reads IS 'What a processor can read from the provider''s API: object, objects, events. Empty without a section api, null before a processor has reported.';

CREATE VIEW mirror.changes AS
 SELECT c.number,
    s.name AS source,
    c.account,
    c.object_type,
    c.object_id,
    o.revision,
    (o.deleted OR (o.version_at = '-9223372036854775808'::bigint)) AS deleted,
    ((o.state IS NULL) AND (o.version_at > '-9223372036854775808'::bigint) AND (o.tied_states = '[]'::jsonb)) AS redacted,
    c.changed_at
   FROM ((postern.changes c
     JOIN postern.sources s ON ((s.number = c.source)))
     CROSS JOIN LATERAL ( SELECT o_1.revision,
            o_1.deleted,
            o_1.version_at,
            o_1.state,
            o_1.tied_states
           FROM postern.objects o_1
          WHERE ((o_1.source = c.source) AND (o_1.account = c.account) AND (o_1.object_type = c.object_type) AND (o_1.object_id = c.object_id))
         LIMIT 1) o);

ALTER TABLE mirror.changes OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.changes IS 'The last change of each object, with the object as it is now. Read it in the order of number, and continue after the last one.';

COMMENT ON COLUMN mirror.changes.source IS 'Name of the source.';

COMMENT ON COLUMN mirror.changes.revision IS 'Revision of the object as it is now. It grows with each change.';

COMMENT ON COLUMN mirror.changes.deleted IS 'The object is deleted, or no stored event makes it any more.';

COMMENT ON COLUMN mirror.changes.redacted IS 'The state was cleared permanently. A newer event or refetch makes this false again.';

CREATE TABLE postern.events (
    id bigint NOT NULL,
    source integer NOT NULL,
    event_id text NOT NULL,
    event_type text NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    occurred_at timestamp with time zone,
    received_at timestamp with time zone NOT NULL,
    origin text NOT NULL,
    api_version text NOT NULL,
    headers jsonb NOT NULL,
    verification jsonb NOT NULL,
    fingerprint bytea NOT NULL,
    delivery_id bigint NOT NULL,
    delivery_index integer NOT NULL,
    body bytea,
    CONSTRAINT events_origin_check CHECK ((origin = ANY (ARRAY['webhook'::text, 'reconcile'::text, 'import'::text])))
)
PARTITION BY RANGE (id);
ALTER TABLE ONLY postern.events ALTER COLUMN event_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN event_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN account SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN object_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN object_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN origin SET STORAGE PLAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN api_version SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN headers SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN verification SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN fingerprint SET STORAGE PLAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN body SET STORAGE MAIN;
ALTER TABLE ONLY postern.events ALTER COLUMN body SET COMPRESSION lz4;

ALTER TABLE postern.events OWNER TO postern_maintenance;

COMMENT ON TABLE postern.events IS 'The append-only log: one row per event. Triggers reject every change except redaction.';

COMMENT ON COLUMN postern.events.id IS 'Event id: Unix milliseconds of the append shifted left by 20 bits, plus a sequence number.';

COMMENT ON COLUMN postern.events.source IS 'Number of the source that received the event.';

COMMENT ON COLUMN postern.events.event_id IS 'The provider''s id of the event, or a content key of the delivery where it has none.';

COMMENT ON COLUMN postern.events.event_type IS 'The provider''s type of the event.';

COMMENT ON COLUMN postern.events.account IS 'Tenant inside the source, such as a connected account or a shop. Empty where there is none.';

COMMENT ON COLUMN postern.events.object_type IS 'Type of the object that the event is about. Empty where it is about none.';

COMMENT ON COLUMN postern.events.object_id IS 'The provider''s id of the object. Empty where the event is about none.';

COMMENT ON COLUMN postern.events.occurred_at IS 'Time of the event according to the provider, null where the delivery does not tell it.';

COMMENT ON COLUMN postern.events.received_at IS 'Time at which the gateway received the delivery.';

COMMENT ON COLUMN postern.events.origin IS 'How the event got here: webhook, reconcile or import.';

COMMENT ON COLUMN postern.events.api_version IS 'Version of the provider''s API that the event was made with.';

COMMENT ON COLUMN postern.events.headers IS 'Headers of the delivery that the provider''s allow-list keeps.';

COMMENT ON COLUMN postern.events.verification IS 'Result of verifying the delivery: scheme, matched secret and time of signature.';

COMMENT ON COLUMN postern.events.fingerprint IS 'First 16 bytes of the SHA-256 of the content. Another content under the same key is a conflict.';

COMMENT ON COLUMN postern.events.delivery_id IS 'Id of the first event of the same delivery. That event holds the body.';

COMMENT ON COLUMN postern.events.delivery_index IS 'Position of the event inside its delivery, from 0.';

COMMENT ON COLUMN postern.events.body IS 'Exact bytes of the delivery. Null where another event of the same delivery (delivery_id) holds them, or after redaction.';

CREATE TABLE postern.redacted_events (
    event bigint NOT NULL,
    run bigint NOT NULL,
    at timestamp with time zone NOT NULL
);

ALTER TABLE postern.redacted_events OWNER TO postern_maintenance;

COMMENT ON TABLE postern.redacted_events IS 'Events whose body and headers were cleared, also those whose partition was dropped since.';

COMMENT ON COLUMN postern.redacted_events.event IS 'Id of the event.';

COMMENT ON COLUMN postern.redacted_events.run IS 'Redaction run that cleared it.';

COMMENT ON COLUMN postern.redacted_events.at IS 'Time of the redaction.';

CREATE VIEW mirror.events AS
 SELECT e.id,
    s.name AS source,
    e.event_id,
    e.event_type,
    e.account,
    e.object_type,
    e.object_id,
    e.occurred_at,
    e.received_at,
    e.origin,
    e.api_version,
    e.headers,
    e.verification,
    e.delivery_id,
    e.delivery_index,
    e.body,
    postern.body_json(e.body) AS body_json,
    ((e.body IS NOT NULL) AND (postern.body_json(e.body) IS NULL)) AS body_json_omitted,
    (EXISTS ( SELECT
           FROM postern.redacted_events r
          WHERE (r.event = e.id))) AS redacted
   FROM (postern.events e
     JOIN postern.sources s ON ((s.number = e.source)));

ALTER TABLE mirror.events OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.events IS 'The log. Column body holds the exact bytes, body_json the same as jsonb where jsonb can hold it.';

COMMENT ON COLUMN mirror.events.source IS 'Name of the source.';

COMMENT ON COLUMN mirror.events.body_json IS 'The body as jsonb. Null where jsonb cannot hold it, or only with numbers of more than 300 digits.';

COMMENT ON COLUMN mirror.events.body_json_omitted IS 'The event has a body and body_json is null: read body.';

COMMENT ON COLUMN mirror.events.redacted IS 'Body and headers were cleared permanently.';

CREATE VIEW mirror.objects AS
 SELECT s.name AS source,
    o.account,
    o.object_type,
    o.object_id,
    o.state,
    (o.deleted OR ((o.version_at = '-9223372036854775808'::bigint) AND (o.refetch_after = 0))) AS deleted,
    o.ambiguous,
    o.sanitized,
    postern.provider_time(o.refetch_after) AS refetch_after,
    postern.version_json(o.version_final, o.version_at, o.version_seen, o.version_rank) AS version,
    o.revision,
    o.last_event_id,
    o.rule_version,
    o.created_at,
    o.updated_at,
    ((o.tied_states = '[]'::jsonb) AND (o.version_at > '-9223372036854775808'::bigint)) AS redacted,
    c.number AS last_change
   FROM ((postern.objects o
     JOIN postern.sources s ON ((s.number = o.source)))
     LEFT JOIN postern.changes c ON (((c.source = o.source) AND (c.account = o.account) AND (c.object_type = o.object_type) AND (c.object_id = o.object_id))));

ALTER TABLE mirror.objects OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.objects IS 'The mirror: one row per object. The columns stay the same across releases.';

COMMENT ON COLUMN mirror.objects.source IS 'Name of the source.';

COMMENT ON COLUMN mirror.objects.deleted IS 'The object is deleted, or no stored event makes it any more.';

COMMENT ON COLUMN mirror.objects.refetch_after IS 'Earliest time, on the provider''s clock, of the refetch that the object needs. Null where it needs none.';

COMMENT ON COLUMN mirror.objects.version IS 'Version of the state: final (permanent delete), at (event time), seen (start of the refetch), rank (order within one time).';

COMMENT ON COLUMN mirror.objects.redacted IS 'The state was cleared permanently. A newer event or refetch makes this false again.';

COMMENT ON COLUMN mirror.objects.last_change IS 'Number of the last change, as in mirror.changes. Null for some milliseconds after the first change.';

CREATE TABLE postern.outcomes (
    event_id bigint NOT NULL,
    run bigint NOT NULL,
    source integer NOT NULL,
    object bigint NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    status text NOT NULL,
    reason text NOT NULL,
    version jsonb,
    decided_by jsonb,
    attempts integer NOT NULL,
    due timestamp with time zone,
    at timestamp with time zone NOT NULL,
    rule_version integer NOT NULL,
    CONSTRAINT outcomes_check CHECK (((status = 'failed'::text) = (due IS NOT NULL))),
    CONSTRAINT outcomes_status_check CHECK ((status = ANY (ARRAY['applied'::text, 'unchanged'::text, 'stale'::text, 'ambiguous'::text, 'ignored'::text, 'failed'::text, 'dead'::text])))
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

ALTER TABLE postern.outcomes OWNER TO postern_maintenance;

COMMENT ON TABLE postern.outcomes IS 'Ledger of applying: one outcome per event and run. Run 0 is live.';

COMMENT ON COLUMN postern.outcomes.event_id IS 'Postern''s number of the event: events.id, not events.event_id.';

COMMENT ON COLUMN postern.outcomes.run IS 'Run that the outcome belongs to. 0 is live.';

COMMENT ON COLUMN postern.outcomes.source IS 'Number of the source.';

COMMENT ON COLUMN postern.outcomes.object IS 'Hash of source, account, object_type and object_id. 0 where the event is about no object.';

COMMENT ON COLUMN postern.outcomes.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.outcomes.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.outcomes.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.outcomes.status IS 'applied, unchanged, stale, ambiguous, ignored, failed (retried at due) or dead (needs an operator).';

COMMENT ON COLUMN postern.outcomes.reason IS 'Reason of the status in words.';

COMMENT ON COLUMN postern.outcomes.version IS 'Version that the event carried.';

COMMENT ON COLUMN postern.outcomes.decided_by IS 'Version of the stored row that decided a stale or unchanged outcome.';

COMMENT ON COLUMN postern.outcomes.attempts IS 'Number of attempts so far.';

COMMENT ON COLUMN postern.outcomes.due IS 'Time of the next attempt of a failed outcome. Null for every other status.';

COMMENT ON COLUMN postern.outcomes.at IS 'Time of the last attempt.';

COMMENT ON COLUMN postern.outcomes.rule_version IS 'Version of the version rule that decided.';

CREATE VIEW mirror.outcomes AS
 SELECT c.event_id,
    c.run,
    s.name AS source,
    c.account,
    c.object_type,
    c.object_id,
    c.status,
    c.reason,
    c.version,
    c.decided_by,
    c.attempts,
    c.due,
    c.at,
    c.rule_version
   FROM (postern.outcomes c
     JOIN postern.sources s ON ((s.number = c.source)));

ALTER TABLE mirror.outcomes OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.outcomes IS 'The outcome of each event. Run 0 is live.';

COMMENT ON COLUMN mirror.outcomes.source IS 'Name of the source.';

CREATE TABLE postern.activity_hours (
    hour integer NOT NULL,
    source integer NOT NULL,
    stored integer,
    duplicates integer,
    conflicts integer,
    rejected integer,
    applied integer,
    unchanged integer,
    stale integer,
    ambiguous integer,
    ignored integer,
    failed integer,
    dead integer
)
WITH (fillfactor='80');

ALTER TABLE postern.activity_hours OWNER TO postern_maintenance;

COMMENT ON TABLE postern.activity_hours IS 'About how many events and deliveries each source had in each hour. Rows are kept for 90 days. Null is 0.';

COMMENT ON COLUMN postern.activity_hours.hour IS 'Number of the hour since 1970 (UTC).';

COMMENT ON COLUMN postern.activity_hours.source IS 'Source.';

COMMENT ON COLUMN postern.activity_hours.stored IS 'Events of accepted deliveries that were stored.';

COMMENT ON COLUMN postern.activity_hours.duplicates IS 'Events of accepted deliveries that were stored before.';

COMMENT ON COLUMN postern.activity_hours.conflicts IS 'Events of accepted deliveries whose key was stored with other content.';

COMMENT ON COLUMN postern.activity_hours.rejected IS 'Rejected deliveries.';

COMMENT ON COLUMN postern.activity_hours.applied IS 'Committed outcomes applied.';

COMMENT ON COLUMN postern.activity_hours.unchanged IS 'Committed outcomes unchanged.';

COMMENT ON COLUMN postern.activity_hours.stale IS 'Committed outcomes stale.';

COMMENT ON COLUMN postern.activity_hours.ambiguous IS 'Committed outcomes ambiguous.';

COMMENT ON COLUMN postern.activity_hours.ignored IS 'Committed outcomes ignored.';

COMMENT ON COLUMN postern.activity_hours.failed IS 'Committed outcomes failed.';

COMMENT ON COLUMN postern.activity_hours.dead IS 'Committed outcomes dead.';

CREATE TABLE postern.activity_minutes (
    minute integer NOT NULL,
    source integer NOT NULL,
    stored integer,
    duplicates integer,
    conflicts integer,
    rejected integer,
    applied integer,
    unchanged integer,
    stale integer,
    ambiguous integer,
    ignored integer,
    failed integer,
    dead integer
)
WITH (fillfactor='70');

ALTER TABLE postern.activity_minutes OWNER TO postern_maintenance;

COMMENT ON TABLE postern.activity_minutes IS 'About how many events and deliveries each source had in each minute. Rows are kept for 2 days. Null is 0.';

COMMENT ON COLUMN postern.activity_minutes.minute IS 'Number of the minute since 1970 (UTC).';

COMMENT ON COLUMN postern.activity_minutes.source IS 'Source.';

COMMENT ON COLUMN postern.activity_minutes.stored IS 'Events of accepted deliveries that were stored.';

COMMENT ON COLUMN postern.activity_minutes.duplicates IS 'Events of accepted deliveries that were stored before.';

COMMENT ON COLUMN postern.activity_minutes.conflicts IS 'Events of accepted deliveries whose key was stored with other content.';

COMMENT ON COLUMN postern.activity_minutes.rejected IS 'Rejected deliveries.';

COMMENT ON COLUMN postern.activity_minutes.applied IS 'Committed outcomes applied.';

COMMENT ON COLUMN postern.activity_minutes.unchanged IS 'Committed outcomes unchanged.';

COMMENT ON COLUMN postern.activity_minutes.stale IS 'Committed outcomes stale.';

COMMENT ON COLUMN postern.activity_minutes.ambiguous IS 'Committed outcomes ambiguous.';

COMMENT ON COLUMN postern.activity_minutes.ignored IS 'Committed outcomes ignored.';

COMMENT ON COLUMN postern.activity_minutes.failed IS 'Committed outcomes failed.';

COMMENT ON COLUMN postern.activity_minutes.dead IS 'Committed outcomes dead.';

CREATE TABLE postern.activity_secrets (
    source integer NOT NULL,
    secret text NOT NULL,
    hour integer NOT NULL,
    verified integer NOT NULL,
    last_at timestamp with time zone NOT NULL
)
WITH (fillfactor='70');

ALTER TABLE postern.activity_secrets OWNER TO postern_maintenance;

COMMENT ON TABLE postern.activity_secrets IS 'About how many requests each secret of a source verified in each hour. Rows are kept for 30 days.';

COMMENT ON COLUMN postern.activity_secrets.source IS 'Source.';

COMMENT ON COLUMN postern.activity_secrets.secret IS 'Name of the secret in the configuration.';

COMMENT ON COLUMN postern.activity_secrets.hour IS 'Number of the hour since 1970 (UTC).';

COMMENT ON COLUMN postern.activity_secrets.verified IS 'Requests with a right signature.';

COMMENT ON COLUMN postern.activity_secrets.last_at IS 'Time at which a process last reported such a request.';

CREATE TABLE postern.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT postern.clock_now() NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    actor text NOT NULL,
    via text NOT NULL,
    address text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    reason text NOT NULL,
    run bigint,
    CONSTRAINT audit_action_check CHECK ((action <> ''::text)),
    CONSTRAINT audit_via_check CHECK ((via = ANY (ARRAY['token'::text, 'console'::text, 'loopback'::text, 'command'::text])))
);

ALTER TABLE postern.audit OWNER TO postern_maintenance;

COMMENT ON TABLE postern.audit IS 'Append-only trail of every change that an operator made by the HTTP API or a command.';

COMMENT ON COLUMN postern.audit.id IS 'Number of the entry.';

COMMENT ON COLUMN postern.audit.at IS 'Time of the change.';

COMMENT ON COLUMN postern.audit.database_user IS 'Login that made the change, set by the database. The inserting role cannot choose it, nor the time.';

COMMENT ON COLUMN postern.audit.actor IS 'With via token or console: name of the token. With via command: account and machine as reported by the command. With via loopback: an unauthenticated local client.';

COMMENT ON COLUMN postern.audit.via IS 'token, console, loopback or command.';

COMMENT ON COLUMN postern.audit.address IS 'Address of the client.';

COMMENT ON COLUMN postern.audit.action IS 'What was done.';

COMMENT ON COLUMN postern.audit.target IS 'The thing that was changed.';

COMMENT ON COLUMN postern.audit.reason IS 'Reason that the operator gave.';

COMMENT ON COLUMN postern.audit.run IS 'Run that the change requested.';

ALTER TABLE postern.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.checkpoints (
    job text NOT NULL,
    run bigint NOT NULL,
    cursor bigint NOT NULL,
    lease_owner text NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    deferrals integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.checkpoints OWNER TO postern_maintenance;

COMMENT ON TABLE postern.checkpoints IS 'Durable cursors and leases of jobs and of background tasks.';

COMMENT ON COLUMN postern.checkpoints.job IS 'Name of the job or task.';

COMMENT ON COLUMN postern.checkpoints.run IS 'The run, 0 for a background task.';

COMMENT ON COLUMN postern.checkpoints.cursor IS 'Work up to this position is committed.';

COMMENT ON COLUMN postern.checkpoints.lease_owner IS 'Process that works on it now. Empty where none does.';

COMMENT ON COLUMN postern.checkpoints.lease_until IS 'End of that process''s lease.';

COMMENT ON COLUMN postern.checkpoints.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.checkpoints.deferrals IS 'How often in a row the run was deferred without progress.';

CREATE TABLE postern.console_sessions (
    digest bytea NOT NULL,
    token text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone NOT NULL,
    address text NOT NULL,
    user_agent text NOT NULL,
    CONSTRAINT console_sessions_digest_check CHECK ((octet_length(digest) = 32))
);

ALTER TABLE postern.console_sessions OWNER TO postern_maintenance;

COMMENT ON TABLE postern.console_sessions IS 'Open sessions of the console. A session ends with its token, 12 hours after the login, or an hour after its last request.';

COMMENT ON COLUMN postern.console_sessions.digest IS 'SHA-256 of the session''s secret, which only the browser has.';

COMMENT ON COLUMN postern.console_sessions.token IS 'Name of the token that the operator gave.';

COMMENT ON COLUMN postern.console_sessions.created_at IS 'Time of the login.';

COMMENT ON COLUMN postern.console_sessions.used_at IS 'Time of the last request, updated once a minute at most.';

COMMENT ON COLUMN postern.console_sessions.address IS 'Address of the login.';

COMMENT ON COLUMN postern.console_sessions.user_agent IS 'Browser of the login, as it describes itself.';

CREATE TABLE postern.disconnected_accounts (
    source integer NOT NULL,
    account text NOT NULL,
    since timestamp with time zone NOT NULL,
    observed_at timestamp with time zone NOT NULL,
    run bigint NOT NULL,
    reason text NOT NULL
);

ALTER TABLE postern.disconnected_accounts OWNER TO postern_maintenance;

COMMENT ON TABLE postern.disconnected_accounts IS 'Connected accounts that the API key may not read any more. A row is deleted when a run can read the account again.';

COMMENT ON COLUMN postern.disconnected_accounts.source IS 'Number of the source.';

COMMENT ON COLUMN postern.disconnected_accounts.account IS 'The account.';

COMMENT ON COLUMN postern.disconnected_accounts.since IS 'Time of the first run that could not read it.';

COMMENT ON COLUMN postern.disconnected_accounts.observed_at IS 'Time of the last run that could not read it.';

COMMENT ON COLUMN postern.disconnected_accounts.run IS 'That last run.';

COMMENT ON COLUMN postern.disconnected_accounts.reason IS 'Response of the provider''s API.';

CREATE TABLE postern.drifts (
    run bigint NOT NULL,
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    kind text NOT NULL,
    fields jsonb DEFAULT '[]'::jsonb NOT NULL,
    more_fields integer DEFAULT 0 NOT NULL,
    event_id bigint,
    result text DEFAULT ''::text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    CONSTRAINT drifts_kind_check CHECK ((kind = ANY (ARRAY['missing'::text, 'mirror_older'::text, 'content_differs'::text, 'orphan'::text]))),
    CONSTRAINT drifts_result_check CHECK ((result = ANY (ARRAY[''::text, 'repaired'::text, 'unrepaired'::text])))
);

ALTER TABLE postern.drifts OWNER TO postern_maintenance;

COMMENT ON TABLE postern.drifts IS 'Objects whose mirrored state differed from the provider, with the first differences of each run.';

COMMENT ON COLUMN postern.drifts.run IS 'The run.';

COMMENT ON COLUMN postern.drifts.source IS 'Number of the source.';

COMMENT ON COLUMN postern.drifts.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.drifts.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.drifts.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.drifts.kind IS 'missing, mirror_older, content_differs or orphan.';

COMMENT ON COLUMN postern.drifts.fields IS 'The first differing fields with both values.';

COMMENT ON COLUMN postern.drifts.more_fields IS 'Number of further fields that differ.';

COMMENT ON COLUMN postern.drifts.event_id IS 'Refetch event that repaired or was to repair the object.';

COMMENT ON COLUMN postern.drifts.result IS 'repaired, unrepaired, or empty before it is decided.';

COMMENT ON COLUMN postern.drifts.reason IS 'Reason why the drift is unrepaired.';

CREATE TABLE postern.dropped_partitions (
    name text NOT NULL,
    id_from bigint NOT NULL,
    id_to bigint NOT NULL,
    retained_to bigint NOT NULL,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    export jsonb,
    run bigint NOT NULL,
    ready_at timestamp with time zone,
    dropped_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT dropped_partitions_check CHECK (((dropped_at IS NULL) OR (ready_at IS NOT NULL)))
)
WITH (fillfactor='50');

ALTER TABLE postern.dropped_partitions OWNER TO postern_maintenance;

COMMENT ON TABLE postern.dropped_partitions IS 'Partitions of the log that retention is about to drop or has dropped. Rows are kept for ever, at most one a day.';

COMMENT ON COLUMN postern.dropped_partitions.name IS 'Name of the partition''s table.';

COMMENT ON COLUMN postern.dropped_partitions.id_from IS 'First event id that the partition may hold.';

COMMENT ON COLUMN postern.dropped_partitions.id_to IS 'First event id behind the partition.';

COMMENT ON COLUMN postern.dropped_partitions.retained_to IS 'Retained objects include the effect of all events up to this id.';

COMMENT ON COLUMN postern.dropped_partitions.events IS 'Number of events that retained objects include so far.';

COMMENT ON COLUMN postern.dropped_partitions.bytes IS 'Size of the partition in bytes.';

COMMENT ON COLUMN postern.dropped_partitions.export IS 'The export that holds the partition''s events, null where none was required.';

COMMENT ON COLUMN postern.dropped_partitions.run IS 'Retention run that handles the partition.';

COMMENT ON COLUMN postern.dropped_partitions.ready_at IS 'Since this time everything that must outlive the partition is kept, so that it may be dropped.';

COMMENT ON COLUMN postern.dropped_partitions.dropped_at IS 'Time of the drop, null before it.';

COMMENT ON COLUMN postern.dropped_partitions.updated_at IS 'Time of the last change of this row.';

CREATE TABLE postern.effect_baselines (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    state jsonb,
    deleted boolean NOT NULL,
    existed boolean NOT NULL,
    exact_hash bytea NOT NULL,
    recorded_at timestamp with time zone NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_baselines OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_baselines IS 'Last certain state of objects that became ambiguous. Rules compare it with the next certain state.';

COMMENT ON COLUMN postern.effect_baselines.source IS 'Number of the source.';

COMMENT ON COLUMN postern.effect_baselines.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.effect_baselines.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.effect_baselines.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.effect_baselines.state IS 'The last certain state.';

COMMENT ON COLUMN postern.effect_baselines.deleted IS 'The object was deleted in that state.';

COMMENT ON COLUMN postern.effect_baselines.existed IS 'The mirror had the object at that time.';

COMMENT ON COLUMN postern.effect_baselines.exact_hash IS 'Hash of the state.';

COMMENT ON COLUMN postern.effect_baselines.recorded_at IS 'Time at which the row was inserted.';

CREATE TABLE postern.effect_schedule_clock (
    singleton boolean DEFAULT true NOT NULL,
    counted_at timestamp with time zone NOT NULL,
    seconds bigint DEFAULT 0 NOT NULL,
    CONSTRAINT effect_schedule_clock_singleton_check CHECK (singleton)
)
WITH (fillfactor='50');

ALTER TABLE postern.effect_schedule_clock OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_schedule_clock IS 'One row: for how many seconds processors have evaluated scheduled rules. It stands still while no processor runs.';

COMMENT ON COLUMN postern.effect_schedule_clock.singleton IS 'Always true, so that the table has one row.';

COMMENT ON COLUMN postern.effect_schedule_clock.counted_at IS 'Time at which seconds was last advanced.';

COMMENT ON COLUMN postern.effect_schedule_clock.seconds IS 'Seconds so far.';

CREATE TABLE postern.effect_steps (
    effect bigint NOT NULL,
    step text NOT NULL,
    undo boolean DEFAULT false NOT NULL,
    "position" integer NOT NULL,
    state text NOT NULL,
    destination text NOT NULL,
    request jsonb,
    fingerprint bytea NOT NULL,
    attempts integer NOT NULL,
    reserved_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    status integer,
    captured jsonb DEFAULT '{}'::jsonb NOT NULL,
    error text DEFAULT ''::text NOT NULL,
    resolved_by text DEFAULT 'key'::text NOT NULL,
    undoable boolean DEFAULT false NOT NULL,
    captures text[] DEFAULT '{}'::text[] NOT NULL,
    first_attempt_at timestamp with time zone,
    at_most_once boolean DEFAULT false NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    CONSTRAINT effect_steps_resolved_by_check CHECK ((resolved_by = ANY (ARRAY['key'::text, 'check'::text, 'operator'::text]))),
    CONSTRAINT effect_steps_state_check CHECK ((state = ANY (ARRAY['checking'::text, 'reserved'::text, 'done'::text, 'failed'::text, 'unknown'::text, 'skipped'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_steps OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_steps IS 'Steps of effects that were started or skipped. A row is committed before its request is sent.';

COMMENT ON COLUMN postern.effect_steps.effect IS 'The effect.';

COMMENT ON COLUMN postern.effect_steps.step IS 'Name of the step in the rule.';

COMMENT ON COLUMN postern.effect_steps.undo IS 'The row is the compensation of the step.';

COMMENT ON COLUMN postern.effect_steps."position" IS 'Position of the step in the rule.';

COMMENT ON COLUMN postern.effect_steps.state IS 'checking (the destination is asked before the first attempt), reserved (the request may be in progress), done, failed, unknown (the request may have been executed) or skipped (the condition of the step was false).';

COMMENT ON COLUMN postern.effect_steps.destination IS 'Destination of the request.';

COMMENT ON COLUMN postern.effect_steps.request IS 'Request as sent at each attempt: method, path, headers and body, without the destination''s own headers. Null after redaction or retention.';

COMMENT ON COLUMN postern.effect_steps.fingerprint IS 'SHA-256 of the request. Empty where none was sent.';

COMMENT ON COLUMN postern.effect_steps.attempts IS 'Number of attempts. 0 where the request was never sent.';

COMMENT ON COLUMN postern.effect_steps.reserved_at IS 'Time at which the last attempt was reserved.';

COMMENT ON COLUMN postern.effect_steps.ended_at IS 'Time at which the step ended. Null before.';

COMMENT ON COLUMN postern.effect_steps.status IS 'HTTP status of the last response.';

COMMENT ON COLUMN postern.effect_steps.captured IS 'Values of the response that later steps and operators need, by name.';

COMMENT ON COLUMN postern.effect_steps.error IS 'Error of the last attempt.';

COMMENT ON COLUMN postern.effect_steps.resolved_by IS 'How an unknown outcome is resolved: key (send again under the same key), check (ask the destination) or operator.';

COMMENT ON COLUMN postern.effect_steps.undoable IS 'The rule had a compensation for the step when it was sent.';

COMMENT ON COLUMN postern.effect_steps.captures IS 'Names that the rule captured from the response when the step was sent.';

COMMENT ON COLUMN postern.effect_steps.first_attempt_at IS 'Time at which the first attempt that may have been executed was reserved. Null where it is planned_at of the effect, or reserved_at with one attempt.';

COMMENT ON COLUMN postern.effect_steps.at_most_once IS 'The step is not sent again automatically where the destination does not know it.';

COMMENT ON COLUMN postern.effect_steps.reason IS 'Why the step was skipped, or is done although its request was never sent. Empty otherwise.';

CREATE TABLE postern.effect_window_changes (
    rule text NOT NULL,
    source integer NOT NULL,
    object_type text NOT NULL,
    account text NOT NULL,
    object_id text NOT NULL,
    window_end timestamp with time zone NOT NULL,
    window_start timestamp with time zone NOT NULL,
    number bigint NOT NULL,
    changed_id text NOT NULL,
    summary text NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_window_changes OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_window_changes IS 'Objects that changed in a window in progress, for a rule with a summary, by the object that they belong to. They are deleted when the rule is evaluated.';

COMMENT ON COLUMN postern.effect_window_changes.rule IS 'Name of the rule.';

COMMENT ON COLUMN postern.effect_window_changes.source IS 'Number of the source.';

COMMENT ON COLUMN postern.effect_window_changes.object_type IS 'The object type of the rule.';

COMMENT ON COLUMN postern.effect_window_changes.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.effect_window_changes.object_id IS 'Id of the object of the rule.';

COMMENT ON COLUMN postern.effect_window_changes.window_end IS 'End of the window.';

COMMENT ON COLUMN postern.effect_window_changes.window_start IS 'Start of the window.';

COMMENT ON COLUMN postern.effect_window_changes.number IS 'Number of the change.';

COMMENT ON COLUMN postern.effect_window_changes.changed_id IS 'Id of the object that changed. Its type is that of the summary.';

COMMENT ON COLUMN postern.effect_window_changes.summary IS 'Type and path of the summary for which the change was collected.';

CREATE TABLE postern.effect_window_waits (
    rule text NOT NULL,
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    window_start timestamp with time zone NOT NULL,
    window_end timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_window_waits OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_window_waits IS 'Objects that were ambiguous when a window reached them. The rule is evaluated for them when their state is certain.';

COMMENT ON COLUMN postern.effect_window_waits.rule IS 'Name of the rule.';

COMMENT ON COLUMN postern.effect_window_waits.source IS 'Number of the source.';

COMMENT ON COLUMN postern.effect_window_waits.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.effect_window_waits.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.effect_window_waits.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.effect_window_waits.window_start IS 'Start of the window.';

COMMENT ON COLUMN postern.effect_window_waits.window_end IS 'End of the window.';

CREATE TABLE postern.effect_windows (
    rule text NOT NULL,
    source integer NOT NULL,
    object_type text NOT NULL,
    cron text NOT NULL,
    time_zone text NOT NULL,
    decided_at timestamp with time zone NOT NULL,
    window_start timestamp with time zone,
    window_end timestamp with time zone,
    account text DEFAULT ''::text NOT NULL,
    object_id text DEFAULT ''::text NOT NULL,
    collected_until bigint,
    changes_until bigint,
    summary text DEFAULT ''::text NOT NULL,
    clock_seconds bigint DEFAULT 0 NOT NULL,
    CONSTRAINT effect_windows_check CHECK ((collected_until <= changes_until)),
    CONSTRAINT effect_windows_check1 CHECK (((window_start IS NULL) = (window_end IS NULL))),
    CONSTRAINT effect_windows_check2 CHECK ((window_start < window_end))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_windows OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_windows IS 'Progress of scheduled rules. A process locks the row of a window and moves it in the transaction that plans effects.';

COMMENT ON COLUMN postern.effect_windows.rule IS 'Name of the rule.';

COMMENT ON COLUMN postern.effect_windows.source IS 'Number of the source.';

COMMENT ON COLUMN postern.effect_windows.object_type IS 'The object type of the rule.';

COMMENT ON COLUMN postern.effect_windows.cron IS 'Cron expression of the rule.';

COMMENT ON COLUMN postern.effect_windows.time_zone IS 'Time zone of the expression.';

COMMENT ON COLUMN postern.effect_windows.decided_at IS 'Every window that ends up to this time was handled or skipped.';

COMMENT ON COLUMN postern.effect_windows.window_start IS 'Start of the window in progress. Null where none is.';

COMMENT ON COLUMN postern.effect_windows.window_end IS 'End of the window in progress. Null where none is.';

COMMENT ON COLUMN postern.effect_windows.account IS 'With object_id: objects up to this one were handled.';

COMMENT ON COLUMN postern.effect_windows.object_id IS 'With account: objects up to this one were handled.';

COMMENT ON COLUMN postern.effect_windows.collected_until IS 'Number of a change: the changes of the window were collected up to it. Null where the rule has no summary.';

COMMENT ON COLUMN postern.effect_windows.changes_until IS 'Number of the last change of the window; without a window in progress, of the previous one.';

COMMENT ON COLUMN postern.effect_windows.summary IS 'Type and path of the rule''s summary, to which the two numbers belong. Empty where the rule has none.';

COMMENT ON COLUMN postern.effect_windows.clock_seconds IS 'Value of effect_schedule_clock.seconds when a processor last had the rule.';

CREATE TABLE postern.effects (
    effect bigint NOT NULL,
    key text NOT NULL,
    rule_version integer NOT NULL,
    forced integer DEFAULT 0 NOT NULL,
    rule text NOT NULL,
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    event_id bigint NOT NULL,
    run bigint NOT NULL,
    template_data jsonb,
    state text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    compensating boolean DEFAULT false NOT NULL,
    destination text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    due timestamp with time zone,
    lease_owner text DEFAULT ''::text NOT NULL,
    lease_until timestamp with time zone,
    planned_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    lease_epoch bigint DEFAULT 0 NOT NULL,
    first_attempt_at timestamp with time zone,
    expires_at timestamp with time zone,
    in_order boolean DEFAULT false NOT NULL,
    CONSTRAINT effects_check CHECK (((state = ANY (ARRAY['planned'::text, 'failed'::text])) = (due IS NOT NULL))),
    CONSTRAINT effects_check1 CHECK (((state = 'running'::text) = (lease_until IS NOT NULL))),
    CONSTRAINT effects_state_check CHECK ((state = ANY (ARRAY['awaiting_approval'::text, 'planned'::text, 'running'::text, 'failed'::text, 'needs_review'::text, 'done'::text, 'rejected'::text, 'expired'::text, 'superseded'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effects OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effects IS 'Ledger of side effects: one row per key and version of its rule.';

COMMENT ON COLUMN postern.effects.effect IS 'Number of the effect.';

COMMENT ON COLUMN postern.effects.key IS 'Key of the planned effect: the same change gives the same key.';

COMMENT ON COLUMN postern.effects.rule_version IS 'Version of the rule in the configuration.';

COMMENT ON COLUMN postern.effects.forced IS 'Replay run with mode force that repeated the effect. 0 for the first.';

COMMENT ON COLUMN postern.effects.rule IS 'Name of the rule.';

COMMENT ON COLUMN postern.effects.source IS 'Number of the source.';

COMMENT ON COLUMN postern.effects.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.effects.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.effects.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.effects.event_id IS 'Event that made the change. 0 for a scheduled rule.';

COMMENT ON COLUMN postern.effects.run IS 'Run that planned the effect. 0 is live.';

COMMENT ON COLUMN postern.effects.template_data IS 'Data for the templates of the steps: old and new state, object, event, window and summary. Null after redaction or retention.';

COMMENT ON COLUMN postern.effects.state IS 'awaiting_approval, planned, running, failed (retried), needs_review, done, rejected, expired or superseded.';

COMMENT ON COLUMN postern.effects.reason IS 'Reason of the state in words.';

COMMENT ON COLUMN postern.effects.compensating IS 'Completed steps are being compensated, the last first.';

COMMENT ON COLUMN postern.effects.destination IS 'Destination of the next step.';

COMMENT ON COLUMN postern.effects.attempts IS 'Number of attempts of the next step.';

COMMENT ON COLUMN postern.effects.due IS 'Time of the next attempt. Null where none is planned.';

COMMENT ON COLUMN postern.effects.lease_owner IS 'Process that executes the effect now.';

COMMENT ON COLUMN postern.effects.lease_until IS 'End of that process''s lease.';

COMMENT ON COLUMN postern.effects.planned_at IS 'Time at which the effect was planned.';

COMMENT ON COLUMN postern.effects.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.effects.lease_epoch IS 'Number of leases so far. A result is recorded only by the owner of the latest lease.';

COMMENT ON COLUMN postern.effects.first_attempt_at IS 'First attempt of the next step since the previous step was done or an operator resumed the effect. The age of retries counts from here.';

COMMENT ON COLUMN postern.effects.expires_at IS 'End of the time for approval. Null where the rule sets none.';

COMMENT ON COLUMN postern.effects.in_order IS 'The effect waits until earlier effects of its rule and object are done or need review.';

ALTER TABLE postern.effects ALTER COLUMN effect ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.effects_effect_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.event_conflicts (
    id bigint NOT NULL,
    source integer NOT NULL,
    event bigint NOT NULL,
    event_id text NOT NULL,
    event_type text NOT NULL,
    account text NOT NULL,
    fingerprint bytea NOT NULL,
    received_at timestamp with time zone NOT NULL,
    headers jsonb NOT NULL,
    verification jsonb NOT NULL,
    body bytea NOT NULL
);
ALTER TABLE ONLY postern.event_conflicts ALTER COLUMN body SET COMPRESSION lz4;

ALTER TABLE postern.event_conflicts OWNER TO postern_maintenance;

COMMENT ON TABLE postern.event_conflicts IS 'Deliveries whose key belongs to an event with another fingerprint. The event keeps the first content; each other content is kept here.';

COMMENT ON COLUMN postern.event_conflicts.id IS 'Number of the conflict.';

COMMENT ON COLUMN postern.event_conflicts.source IS 'Number of the source.';

COMMENT ON COLUMN postern.event_conflicts.event IS 'Id of the stored event that has the same key.';

COMMENT ON COLUMN postern.event_conflicts.event_id IS 'The provider''s id of the event.';

COMMENT ON COLUMN postern.event_conflicts.event_type IS 'The provider''s type of the event.';

COMMENT ON COLUMN postern.event_conflicts.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.event_conflicts.fingerprint IS 'Fingerprint of the conflicting content.';

COMMENT ON COLUMN postern.event_conflicts.received_at IS 'Time at which the gateway received the delivery.';

COMMENT ON COLUMN postern.event_conflicts.headers IS 'Headers of the delivery that the allow-list keeps.';

COMMENT ON COLUMN postern.event_conflicts.verification IS 'Result of verifying the delivery.';

COMMENT ON COLUMN postern.event_conflicts.body IS 'Exact bytes of the delivery.';

ALTER TABLE postern.event_conflicts ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.event_conflicts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.event_keys (
    source integer NOT NULL,
    key bytea NOT NULL,
    id bigint NOT NULL,
    fingerprint bytea NOT NULL
)
WITH (autovacuum_analyze_threshold='20000');

ALTER TABLE postern.event_keys OWNER TO postern_maintenance;

COMMENT ON TABLE postern.event_keys IS 'One row per stored event key. The primary key makes an event unique, also after its partition was dropped.';

COMMENT ON COLUMN postern.event_keys.source IS 'Number of the source.';

COMMENT ON COLUMN postern.event_keys.key IS 'First 16 bytes of the SHA-256 of the event''s key.';

COMMENT ON COLUMN postern.event_keys.id IS 'Id of the event that has the key.';

COMMENT ON COLUMN postern.event_keys.fingerprint IS 'Fingerprint of that event''s content.';

CREATE SEQUENCE postern.event_sequence
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 64;

ALTER TABLE postern.event_sequence OWNER TO postern_maintenance;

COMMENT ON SEQUENCE postern.event_sequence IS 'Low 20 bits of the ids of events.';

CREATE TABLE postern.feed_cursors (
    name text NOT NULL,
    epoch text NOT NULL,
    number bigint NOT NULL,
    stalls_after interval,
    created_at timestamp with time zone NOT NULL,
    moved_at timestamp with time zone NOT NULL,
    moved_by text NOT NULL,
    behind_since timestamp with time zone,
    by_reader boolean DEFAULT false NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.feed_cursors OWNER TO postern_maintenance;

COMMENT ON TABLE postern.feed_cursors IS 'Named cursors: how far readers have processed the changes, as they report it. At most 1,000.';

COMMENT ON COLUMN postern.feed_cursors.name IS 'Name that the reader has given.';

COMMENT ON COLUMN postern.feed_cursors.epoch IS 'Epoch of the number, as in change_feed.';

COMMENT ON COLUMN postern.feed_cursors.number IS 'Number of the last change that the reader has processed.';

COMMENT ON COLUMN postern.feed_cursors.stalls_after IS 'How long the cursor may stand still with unread changes before operators are alerted. Null: they are not.';

COMMENT ON COLUMN postern.feed_cursors.created_at IS 'Time at which the cursor was created.';

COMMENT ON COLUMN postern.feed_cursors.moved_at IS 'Time at which the reader last reported.';

COMMENT ON COLUMN postern.feed_cursors.moved_by IS 'Actor that last reported.';

COMMENT ON COLUMN postern.feed_cursors.behind_since IS 'Time since which the cursor stands still with unread changes. Processors set it, and a report clears it.';

COMMENT ON COLUMN postern.feed_cursors.by_reader IS 'The last report is by a token without the role operator. Only this token or an operator may move the cursor.';

CREATE TABLE postern.idempotency_keys (
    scope text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    lease_owner text NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    status integer,
    content_type text DEFAULT ''::text NOT NULL,
    body bytea
);
ALTER TABLE ONLY postern.idempotency_keys ALTER COLUMN body SET COMPRESSION lz4;

ALTER TABLE postern.idempotency_keys OWNER TO postern_maintenance;

COMMENT ON TABLE postern.idempotency_keys IS 'Requests of the HTTP API that were sent with an idempotency key, with their responses.';

COMMENT ON COLUMN postern.idempotency_keys.scope IS 'Token and route that the key belongs to.';

COMMENT ON COLUMN postern.idempotency_keys.key IS 'The client''s key.';

COMMENT ON COLUMN postern.idempotency_keys.fingerprint IS 'Digest of the request, to notice a different one.';

COMMENT ON COLUMN postern.idempotency_keys.created_at IS 'Time of the first request.';

COMMENT ON COLUMN postern.idempotency_keys.lease_owner IS 'Request that executes it now.';

COMMENT ON COLUMN postern.idempotency_keys.lease_until IS 'End of that request''s lease.';

COMMENT ON COLUMN postern.idempotency_keys.status IS 'HTTP status of the response. Null before there is one, or where none is kept.';

COMMENT ON COLUMN postern.idempotency_keys.content_type IS 'Content type of the response.';

COMMENT ON COLUMN postern.idempotency_keys.body IS 'Body of the response.';

CREATE TABLE postern.listed_objects (
    run bigint NOT NULL,
    object_type text NOT NULL,
    object bigint NOT NULL,
    unrepaired boolean DEFAULT false NOT NULL,
    drifted boolean DEFAULT false NOT NULL
);

ALTER TABLE postern.listed_objects OWNER TO postern_maintenance;

COMMENT ON TABLE postern.listed_objects IS 'Hashes of the objects that a scan has read from the provider''s list. Rows are deleted when the type is done or after the run.';

COMMENT ON COLUMN postern.listed_objects.run IS 'The run.';

COMMENT ON COLUMN postern.listed_objects.object_type IS 'The object type.';

COMMENT ON COLUMN postern.listed_objects.object IS 'Hash of the object''s id.';

COMMENT ON COLUMN postern.listed_objects.unrepaired IS 'The object differed and was not repaired.';

COMMENT ON COLUMN postern.listed_objects.drifted IS 'The object had a drift when it was first read, and counts as such.';

CREATE TABLE postern.log_floor (
    singleton boolean DEFAULT true NOT NULL,
    ms bigint NOT NULL,
    CONSTRAINT log_floor_singleton_check CHECK (singleton)
)
WITH (fillfactor='50');

ALTER TABLE postern.log_floor OWNER TO postern_maintenance;

COMMENT ON TABLE postern.log_floor IS 'One row: the time below which no new event id is made. Readers of the log raise it.';

COMMENT ON COLUMN postern.log_floor.singleton IS 'Always true, so that the table has one row.';

COMMENT ON COLUMN postern.log_floor.ms IS 'New event ids carry a later time than this, in Unix milliseconds.';

CREATE TABLE postern.notifications (
    name text NOT NULL,
    condition text NOT NULL,
    sequence bigint DEFAULT 0 NOT NULL,
    since timestamp with time zone,
    notified_at timestamp with time zone,
    watermark timestamp with time zone NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    lease_until timestamp with time zone,
    failure text DEFAULT ''::text NOT NULL,
    seed uuid DEFAULT gen_random_uuid() NOT NULL
)
WITH (fillfactor='70');

ALTER TABLE postern.notifications OWNER TO postern_maintenance;

COMMENT ON TABLE postern.notifications IS 'State of the configured notifications: one row per name and condition.';

COMMENT ON COLUMN postern.notifications.name IS 'Name of the notification in the configuration.';

COMMENT ON COLUMN postern.notifications.condition IS 'Condition that it reports.';

COMMENT ON COLUMN postern.notifications.sequence IS 'Number of sent notifications. A repeated attempt has the same number.';

COMMENT ON COLUMN postern.notifications.since IS 'Time at which a lasting condition was first reported. Null where none lasts.';

COMMENT ON COLUMN postern.notifications.notified_at IS 'Time of the last successful notification.';

COMMENT ON COLUMN postern.notifications.watermark IS 'Runs that ended up to this time were reported, or were no failures.';

COMMENT ON COLUMN postern.notifications.attempts IS 'Number of failed attempts since the last success.';

COMMENT ON COLUMN postern.notifications.lease_until IS 'Until then one process sends it, or waits after a failure.';

COMMENT ON COLUMN postern.notifications.failure IS 'Error of the last attempt.';

COMMENT ON COLUMN postern.notifications.seed IS 'Random part of the notification''s ids, so that two installations do not use the same ids.';

CREATE TABLE postern.object_scans (
    run bigint NOT NULL,
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    phase text DEFAULT 'list'::text NOT NULL,
    cursor text DEFAULT ''::text NOT NULL,
    in_progress jsonb DEFAULT '[]'::jsonb NOT NULL,
    since timestamp with time zone,
    until timestamp with time zone,
    started_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    restarts integer DEFAULT 0 NOT NULL,
    tombstones_proposed bigint DEFAULT 0 NOT NULL,
    checked bigint DEFAULT 0 NOT NULL,
    missing bigint DEFAULT 0 NOT NULL,
    mirror_older bigint DEFAULT 0 NOT NULL,
    mirror_newer bigint DEFAULT 0 NOT NULL,
    content_differs bigint DEFAULT 0 NOT NULL,
    orphans bigint DEFAULT 0 NOT NULL,
    repaired bigint DEFAULT 0 NOT NULL,
    unrepaired bigint DEFAULT 0 NOT NULL,
    scope text DEFAULT ''::text NOT NULL,
    skipped_parts jsonb DEFAULT '[]'::jsonb NOT NULL,
    not_listed bigint DEFAULT 0 NOT NULL,
    rereads integer DEFAULT 0 NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    versions_only boolean DEFAULT false NOT NULL,
    CONSTRAINT object_scans_phase_check CHECK ((phase = ANY (ARRAY['list'::text, 'orphans'::text, 'tombstones'::text, 'awaiting_approval'::text, 'done'::text, 'skipped'::text, 'not_listable'::text])))
)
WITH (fillfactor='50');

ALTER TABLE postern.object_scans OWNER TO postern_maintenance;

COMMENT ON TABLE postern.object_scans IS 'Progress and counts of a run that walks the provider''s list of one object type.';

COMMENT ON COLUMN postern.object_scans.run IS 'The run.';

COMMENT ON COLUMN postern.object_scans.source IS 'Number of the source.';

COMMENT ON COLUMN postern.object_scans.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.object_scans.object_type IS 'The object type that is scanned.';

COMMENT ON COLUMN postern.object_scans.phase IS 'list, orphans, tombstones, awaiting_approval, done, skipped or not_listable.';

COMMENT ON COLUMN postern.object_scans.cursor IS 'Where the walk of the list, or of the mirror, continues.';

COMMENT ON COLUMN postern.object_scans.in_progress IS 'Objects before the cursor that are not repaired yet: id, kind of drift, and whether it was counted.';

COMMENT ON COLUMN postern.object_scans.since IS 'Start of the interval of changes that was requested, on the provider''s clock. Null for all objects.';

COMMENT ON COLUMN postern.object_scans.until IS 'End of that interval.';

COMMENT ON COLUMN postern.object_scans.started_at IS 'The list shows at least everything that happened before this time on the provider''s clock.';

COMMENT ON COLUMN postern.object_scans.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.object_scans.restarts IS 'How often the scan started again from the first page.';

COMMENT ON COLUMN postern.object_scans.tombstones_proposed IS 'Number of tombstones that needed approval before the first was written. 0 where none did.';

COMMENT ON COLUMN postern.object_scans.checked IS 'Number of objects that were compared.';

COMMENT ON COLUMN postern.object_scans.missing IS 'Number of objects that the mirror did not have.';

COMMENT ON COLUMN postern.object_scans.mirror_older IS 'Number of objects whose mirrored version was older.';

COMMENT ON COLUMN postern.object_scans.mirror_newer IS 'Number of objects whose mirrored version was newer.';

COMMENT ON COLUMN postern.object_scans.content_differs IS 'Number of objects with the same version and other content.';

COMMENT ON COLUMN postern.object_scans.orphans IS 'Number of mirrored objects that the provider does not have.';

COMMENT ON COLUMN postern.object_scans.repaired IS 'Number of objects that were repaired.';

COMMENT ON COLUMN postern.object_scans.unrepaired IS 'Number of objects with drift that were not repaired.';

COMMENT ON COLUMN postern.object_scans.scope IS 'Digest of the list''s definition when the scan started.';

COMMENT ON COLUMN postern.object_scans.skipped_parts IS 'Parts of the list that could not be read: part, reason, and whether its first page was read.';

COMMENT ON COLUMN postern.object_scans.not_listed IS 'Number of checked objects that the list does not show and that exist by their ids.';

COMMENT ON COLUMN postern.object_scans.rereads IS 'How often the list was read again for objects in progress.';

COMMENT ON COLUMN postern.object_scans.reason IS 'Response of the API that shows why the type is not listable. Empty in other phases.';

COMMENT ON COLUMN postern.object_scans.versions_only IS 'The list shows only versions that not every change moves. A change under an equal version was not noticed.';

CREATE TABLE postern.orphans (
    run bigint NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    missing_at timestamp with time zone NOT NULL,
    elapsed_us bigint NOT NULL,
    body bytea
);

ALTER TABLE postern.orphans OWNER TO postern_maintenance;

COMMENT ON TABLE postern.orphans IS 'Mirrored objects that the provider reported as missing. Rows are deleted when their tombstones are in the log, or after the run.';

COMMENT ON COLUMN postern.orphans.run IS 'The run.';

COMMENT ON COLUMN postern.orphans.object_type IS 'The object type.';

COMMENT ON COLUMN postern.orphans.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.orphans.missing_at IS 'Time at which the provider reported it, on the provider''s clock.';

COMMENT ON COLUMN postern.orphans.elapsed_us IS 'Duration of the request in microseconds.';

COMMENT ON COLUMN postern.orphans.body IS 'Response of the provider in place of the object. Null where it had no body.';

CREATE TABLE postern.outbox (
    batch bigint NOT NULL,
    sources integer[] NOT NULL,
    accounts text[] NOT NULL,
    types text[] NOT NULL,
    ids text[] NOT NULL,
    created_at timestamp with time zone NOT NULL,
    sent_at timestamp with time zone,
    sequence bigint,
    numbered boolean DEFAULT false NOT NULL,
    forward_pending boolean DEFAULT false NOT NULL,
    CONSTRAINT outbox_check CHECK (((sent_at IS NULL) = (sequence IS NULL)))
)
WITH (fillfactor='70');

ALTER TABLE postern.outbox OWNER TO postern_maintenance;

COMMENT ON TABLE postern.outbox IS 'Changes to publish: one row per apply transaction. The maintenance loop vacuums it, because autovacuum comes too late.';

COMMENT ON COLUMN postern.outbox.batch IS 'Number of the row.';

COMMENT ON COLUMN postern.outbox.sources IS 'Sources of the changed objects. The four arrays are parallel.';

COMMENT ON COLUMN postern.outbox.accounts IS 'Accounts of the changed objects.';

COMMENT ON COLUMN postern.outbox.types IS 'Types of the changed objects.';

COMMENT ON COLUMN postern.outbox.ids IS 'Ids of the changed objects.';

COMMENT ON COLUMN postern.outbox.created_at IS 'Time of the transaction.';

COMMENT ON COLUMN postern.outbox.sent_at IS 'Time at which the stream acknowledged the changes. Null before.';

COMMENT ON COLUMN postern.outbox.sequence IS 'Sequence number of the last message in the stream. Null before it was sent.';

COMMENT ON COLUMN postern.outbox.numbered IS 'The changes have their numbers in table changes.';

COMMENT ON COLUMN postern.outbox.forward_pending IS 'A processor with forwards has not planned the effects of these changes yet.';

ALTER TABLE postern.outbox ALTER COLUMN batch ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.outbox_batch_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.processes (
    id text NOT NULL,
    kind text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    admin_address text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    reported_at timestamp with time zone NOT NULL,
    not_ready text NOT NULL,
    config_loaded_at timestamp with time zone NOT NULL,
    config_digest text NOT NULL,
    config_problem text NOT NULL,
    can_reprocess boolean NOT NULL,
    CONSTRAINT processes_kind_check CHECK ((kind = ANY (ARRAY['gateway'::text, 'processor'::text, 'serve'::text, 'dev'::text])))
)
WITH (fillfactor='50');

ALTER TABLE postern.processes OWNER TO postern_maintenance;

COMMENT ON TABLE postern.processes IS 'Running processes. Each reports every 10 seconds, and deletes its row when it stops. The others delete rows that were not reported for an hour.';

COMMENT ON COLUMN postern.processes.id IS 'Random name of this start of the process.';

COMMENT ON COLUMN postern.processes.kind IS 'gateway, processor, serve or dev.';

COMMENT ON COLUMN postern.processes.host IS 'Name of the machine.';

COMMENT ON COLUMN postern.processes.pid IS 'Number of the process on the machine.';

COMMENT ON COLUMN postern.processes.version IS 'Version and commit of the program.';

COMMENT ON COLUMN postern.processes.admin_address IS 'Address of its admin listener.';

COMMENT ON COLUMN postern.processes.started_at IS 'Time of the start.';

COMMENT ON COLUMN postern.processes.reported_at IS 'Time of the last report.';

COMMENT ON COLUMN postern.processes.not_ready IS 'Reason why it cannot do its work. Empty if it can.';

COMMENT ON COLUMN postern.processes.config_loaded_at IS 'Time at which it loaded its current sources and rules.';

COMMENT ON COLUMN postern.processes.config_digest IS 'Digest of the sections that are reloaded, without secrets. Processes with equal sections have the same digest.';

COMMENT ON COLUMN postern.processes.config_problem IS 'Reason why it does not use its current configuration file. Empty without a problem.';

COMMENT ON COLUMN postern.processes.can_reprocess IS 'True if it can reprocess rejections: it has the signing secrets, and may append.';

CREATE TABLE postern.rate_budgets (
    source integer NOT NULL,
    account text NOT NULL,
    tokens double precision NOT NULL,
    refilled_at timestamp with time zone NOT NULL,
    blocked_until timestamp with time zone NOT NULL,
    throttles integer NOT NULL,
    in_flight jsonb NOT NULL,
    calls jsonb DEFAULT '{}'::jsonb NOT NULL
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_analyze_threshold='1000000');

ALTER TABLE postern.rate_budgets OWNER TO postern_maintenance;

COMMENT ON TABLE postern.rate_budgets IS 'Calls that may be made to a provider for an account: one token bucket that all processes share.';

COMMENT ON COLUMN postern.rate_budgets.source IS 'Number of the source.';

COMMENT ON COLUMN postern.rate_budgets.account IS 'Account whose limit it is.';

COMMENT ON COLUMN postern.rate_budgets.tokens IS 'Calls that could start at refilled_at.';

COMMENT ON COLUMN postern.rate_budgets.refilled_at IS 'Time at which tokens was computed.';

COMMENT ON COLUMN postern.rate_budgets.blocked_until IS 'No call starts before this time, because the provider asked for a pause.';

COMMENT ON COLUMN postern.rate_budgets.throttles IS 'How often in a row the provider asked for a pause.';

COMMENT ON COLUMN postern.rate_budgets.in_flight IS 'Calls in progress, each with the Unix time at which it counts as lost.';

COMMENT ON COLUMN postern.rate_budgets.calls IS 'Number of calls by UTC day, counted in days since 1970-01-01, for the last day with a call and the thirty days before it.';

CREATE TABLE postern.recent_missing (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    at timestamp with time zone NOT NULL
);

ALTER TABLE postern.recent_missing OWNER TO postern_maintenance;

COMMENT ON TABLE postern.recent_missing IS 'Objects that were alive in the mirror and that a refetch did not find, of the last hour.';

COMMENT ON COLUMN postern.recent_missing.source IS 'Number of the source.';

COMMENT ON COLUMN postern.recent_missing.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.recent_missing.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.recent_missing.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.recent_missing.at IS 'Time of the refetch.';

CREATE TABLE postern.redactions (
    run bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    params jsonb NOT NULL,
    requested_by bigint,
    events bigint NOT NULL,
    objects bigint NOT NULL,
    conflicts bigint NOT NULL,
    rejections bigint NOT NULL,
    began_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone
)
WITH (fillfactor='50');

ALTER TABLE postern.redactions OWNER TO postern_maintenance;

COMMENT ON TABLE postern.redactions IS 'Each redaction: who requested it, why, and what it cleared. Rows are kept for ever. Search values are stored only as salted digests, until the run ends.';

COMMENT ON COLUMN postern.redactions.run IS 'The redaction run.';

COMMENT ON COLUMN postern.redactions.actor IS 'Operator who requested it.';

COMMENT ON COLUMN postern.redactions.reason IS 'Reason that the operator gave.';

COMMENT ON COLUMN postern.redactions.params IS 'The request.';

COMMENT ON COLUMN postern.redactions.requested_by IS 'Event that requested the redaction, such as a provider''s privacy webhook.';

COMMENT ON COLUMN postern.redactions.events IS 'Number of cleared events.';

COMMENT ON COLUMN postern.redactions.objects IS 'Number of cleared objects.';

COMMENT ON COLUMN postern.redactions.conflicts IS 'Number of cleared conflicts.';

COMMENT ON COLUMN postern.redactions.rejections IS 'Number of deleted rejections.';

COMMENT ON COLUMN postern.redactions.began_at IS 'Time of the start.';

COMMENT ON COLUMN postern.redactions.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.redactions.ended_at IS 'Time of the end. Null while it is open.';

CREATE TABLE postern.refetch_requests (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    reason text NOT NULL,
    requested_by text DEFAULT ''::text NOT NULL,
    requested_at timestamp with time zone NOT NULL,
    due timestamp with time zone NOT NULL,
    start_after bigint NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    error text DEFAULT ''::text NOT NULL,
    lease_owner text DEFAULT ''::text NOT NULL,
    lease_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    missed_changes jsonb
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.refetch_requests OWNER TO postern_maintenance;

COMMENT ON TABLE postern.refetch_requests IS 'Queue of objects to read again from the provider''s API, one row per object. A row is deleted when its object has no refetch pending.';

COMMENT ON COLUMN postern.refetch_requests.source IS 'Number of the source.';

COMMENT ON COLUMN postern.refetch_requests.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.refetch_requests.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.refetch_requests.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.refetch_requests.reason IS 'Reason of the refetch in words.';

COMMENT ON COLUMN postern.refetch_requests.requested_by IS 'Operator who requested the refetch. Empty for an automatic request.';

COMMENT ON COLUMN postern.refetch_requests.requested_at IS 'Time of the latest request.';

COMMENT ON COLUMN postern.refetch_requests.due IS 'Time of the next attempt. Infinity while the request is suspended.';

COMMENT ON COLUMN postern.refetch_requests.start_after IS 'The refetch must start after this time on the provider''s clock, in microseconds.';

COMMENT ON COLUMN postern.refetch_requests.attempts IS 'Number of failed attempts so far.';

COMMENT ON COLUMN postern.refetch_requests.error IS 'Error of the last attempt.';

COMMENT ON COLUMN postern.refetch_requests.lease_owner IS 'Process that makes the refetch now. Empty where none does.';

COMMENT ON COLUMN postern.refetch_requests.lease_until IS 'End of that process''s lease.';

COMMENT ON COLUMN postern.refetch_requests.missed_changes IS 'Pairs of state hashes, from and to: changes between these states were not received. Null where the request has another reason.';

CREATE TABLE postern.rejections (
    id bigint NOT NULL,
    source integer NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL,
    remote text NOT NULL,
    received_at timestamp with time zone NOT NULL,
    headers jsonb NOT NULL,
    body bytea NOT NULL,
    bytes bigint NOT NULL
);
ALTER TABLE ONLY postern.rejections ALTER COLUMN body SET COMPRESSION lz4;

ALTER TABLE postern.rejections OWNER TO postern_maintenance;

COMMENT ON TABLE postern.rejections IS 'Deliveries that the gateway rejected, bounded in number and bytes, so that they can be verified again.';

COMMENT ON COLUMN postern.rejections.id IS 'Number of the rejection.';

COMMENT ON COLUMN postern.rejections.source IS 'Number of the source.';

COMMENT ON COLUMN postern.rejections.reason IS 'Machine-readable reason of the rejection.';

COMMENT ON COLUMN postern.rejections.detail IS 'Reason in words, for the operator.';

COMMENT ON COLUMN postern.rejections.remote IS 'Address that sent the delivery.';

COMMENT ON COLUMN postern.rejections.received_at IS 'Time at which the gateway received the delivery.';

COMMENT ON COLUMN postern.rejections.headers IS 'Headers of the delivery.';

COMMENT ON COLUMN postern.rejections.body IS 'Exact bytes of the delivery.';

COMMENT ON COLUMN postern.rejections.bytes IS 'Size that counts towards the limit.';

ALTER TABLE postern.rejections ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.rejections_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.republish_passes (
    id bigint NOT NULL,
    requested_at timestamp with time zone,
    requested_by text NOT NULL,
    reason text NOT NULL,
    ended_at timestamp with time zone,
    published_at timestamp with time zone,
    missing bigint DEFAULT 0 NOT NULL,
    due bigint DEFAULT 0 NOT NULL,
    detail text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.republish_passes OWNER TO postern_maintenance;

COMMENT ON TABLE postern.republish_passes IS 'Passes of the republisher. Row 0 is its automatic passes; each other row is a pass that an operator requested.';

COMMENT ON COLUMN postern.republish_passes.id IS 'Number of the pass.';

COMMENT ON COLUMN postern.republish_passes.requested_at IS 'Time of the request.';

COMMENT ON COLUMN postern.republish_passes.requested_by IS 'Operator who requested it.';

COMMENT ON COLUMN postern.republish_passes.reason IS 'Reason that the operator gave.';

COMMENT ON COLUMN postern.republish_passes.ended_at IS 'Time of the end. In row 0: end of the last complete pass.';

COMMENT ON COLUMN postern.republish_passes.published_at IS 'Time at which events were last published again.';

COMMENT ON COLUMN postern.republish_passes.missing IS 'Number of events without outcome that were published again. In row 0: of one pass.';

COMMENT ON COLUMN postern.republish_passes.due IS 'Number of failed events that were published again. In row 0: of one pass.';

COMMENT ON COLUMN postern.republish_passes.detail IS 'Reason why the last pass has not ended.';

ALTER TABLE postern.republish_passes ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME postern.republish_passes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.retained_objects (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    version_final boolean NOT NULL,
    version_at bigint NOT NULL,
    version_seen bigint NOT NULL,
    version_rank smallint NOT NULL,
    tied_states jsonb NOT NULL,
    overflow boolean NOT NULL,
    time_from bigint NOT NULL,
    time_to bigint NOT NULL,
    refetch_after bigint NOT NULL,
    ambiguous boolean NOT NULL,
    deleted boolean NOT NULL,
    state_hash bytea NOT NULL,
    exact_hash bytea NOT NULL,
    state jsonb,
    sanitized boolean NOT NULL,
    last_event_id bigint NOT NULL,
    revision bigint NOT NULL,
    rule_version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    overwritten_at bigint DEFAULT 0 NOT NULL,
    overwrite_seen bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN account SET STORAGE MAIN;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN object_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN object_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN tied_states SET STORAGE MAIN;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN tied_states SET COMPRESSION lz4;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN state_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN exact_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN state SET STORAGE MAIN;
ALTER TABLE ONLY postern.retained_objects ALTER COLUMN state SET COMPRESSION lz4;

ALTER TABLE postern.retained_objects OWNER TO postern_maintenance;

COMMENT ON TABLE postern.retained_objects IS 'Each object as the events of dropped partitions, and only they, make it. Rebuild and verify start from these rows.';

COMMENT ON COLUMN postern.retained_objects.source IS 'Number of the source.';

COMMENT ON COLUMN postern.retained_objects.account IS 'Tenant inside the source. Empty where there is none.';

COMMENT ON COLUMN postern.retained_objects.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.retained_objects.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.retained_objects.version_final IS 'True after a permanent delete. No later version can replace it.';

COMMENT ON COLUMN postern.retained_objects.version_at IS 'Event time of the version. -2^63 means that there is no version yet.';

COMMENT ON COLUMN postern.retained_objects.version_seen IS 'Start of the refetch that read the version. 0 for a version from an event.';

COMMENT ON COLUMN postern.retained_objects.version_rank IS 'Order of versions that have the same time.';

COMMENT ON COLUMN postern.retained_objects.tied_states IS 'All different contents of exactly this version.';

COMMENT ON COLUMN postern.retained_objects.overflow IS 'There were more tied states than the set may hold.';

COMMENT ON COLUMN postern.retained_objects.time_from IS 'Start of the interval in which the state was observed.';

COMMENT ON COLUMN postern.retained_objects.time_to IS 'End of the interval in which the state was observed.';

COMMENT ON COLUMN postern.retained_objects.refetch_after IS 'A refetch that starts after this time is pending. 0 where none is.';

COMMENT ON COLUMN postern.retained_objects.ambiguous IS 'The tied states do not tell which of them is current.';

COMMENT ON COLUMN postern.retained_objects.deleted IS 'The object does not exist any more; the row is its tombstone.';

COMMENT ON COLUMN postern.retained_objects.state_hash IS 'Hash of the state without ignored paths. Equal hashes mean an unchanged object.';

COMMENT ON COLUMN postern.retained_objects.exact_hash IS 'Hash of the whole state.';

COMMENT ON COLUMN postern.retained_objects.state IS 'The object''s state. Null after redaction, or where the provider sent none.';

COMMENT ON COLUMN postern.retained_objects.sanitized IS 'The state contained text or numbers that jsonb refuses. They were replaced; the event''s body keeps the original.';

COMMENT ON COLUMN postern.retained_objects.last_event_id IS 'Event that made the current version.';

COMMENT ON COLUMN postern.retained_objects.revision IS 'Grows with each change of state, deleted or ambiguous.';

COMMENT ON COLUMN postern.retained_objects.rule_version IS 'Version of the version rule that decided the row.';

COMMENT ON COLUMN postern.retained_objects.created_at IS 'Time at which the row was inserted.';

COMMENT ON COLUMN postern.retained_objects.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.retained_objects.overwritten_at IS 'Time at which an operator overwrote the object from the provider, in microseconds of the database clock. Events received before do not count. 0 where no operator did.';

COMMENT ON COLUMN postern.retained_objects.overwrite_seen IS 'Start of the refetch that an operator overwrote the object with, in microseconds on the provider''s clock. 0 where no operator did.';

CREATE TABLE postern.runs (
    run bigint NOT NULL,
    job text NOT NULL,
    params jsonb NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    status text NOT NULL,
    detail text NOT NULL,
    bound bigint,
    expected bigint,
    counts jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL,
    approved_by text DEFAULT ''::text NOT NULL,
    approval_reason text DEFAULT ''::text NOT NULL,
    in_progress bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    schedule text,
    planned_at timestamp with time zone,
    idempotency_key text,
    idempotency_request text,
    published_at timestamp with time zone,
    publish_after timestamp with time zone,
    proposal text DEFAULT ''::text NOT NULL,
    approvals jsonb DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT runs_check CHECK (((ended_at IS NOT NULL) = (status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])))),
    CONSTRAINT runs_status_check CHECK ((status = ANY (ARRAY['awaiting_approval'::text, 'queued'::text, 'running'::text, 'paused'::text, 'done'::text, 'failed'::text, 'cancelled'::text])))
)
WITH (fillfactor='50');

ALTER TABLE postern.runs OWNER TO postern_maintenance;

COMMENT ON TABLE postern.runs IS 'Ledger of jobs: one row per run, from request to end.';

COMMENT ON COLUMN postern.runs.run IS 'Number of the run. 0 is never used: it means live.';

COMMENT ON COLUMN postern.runs.job IS 'replay, rebuild, reconcile, retention, redact, retry and so on.';

COMMENT ON COLUMN postern.runs.params IS 'Filter and options of the request.';

COMMENT ON COLUMN postern.runs.actor IS 'Operator, token or schedule that requested the run.';

COMMENT ON COLUMN postern.runs.reason IS 'Reason that the operator gave.';

COMMENT ON COLUMN postern.runs.status IS 'awaiting_approval, queued, running, paused, done, failed or cancelled.';

COMMENT ON COLUMN postern.runs.detail IS 'Progress or result in words.';

COMMENT ON COLUMN postern.runs.bound IS 'The run reads the log up to this event id. Null until it is frozen.';

COMMENT ON COLUMN postern.runs.expected IS 'Number of events that the run expects to read.';

COMMENT ON COLUMN postern.runs.counts IS 'Number of events by result, as of the last checkpoint.';

COMMENT ON COLUMN postern.runs.created_at IS 'Time of the request.';

COMMENT ON COLUMN postern.runs.started_at IS 'Time at which a processor first started it.';

COMMENT ON COLUMN postern.runs.ended_at IS 'Time of the end. Null while it is open.';

COMMENT ON COLUMN postern.runs.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.runs.approved_by IS 'Operator who approved the run. Empty where no approval was needed.';

COMMENT ON COLUMN postern.runs.approval_reason IS 'Reason that this operator gave.';

COMMENT ON COLUMN postern.runs.in_progress IS 'Events that were selected and are not counted yet, for jobs that would not select them again.';

COMMENT ON COLUMN postern.runs.schedule IS 'Name of the schedule that requested the run.';

COMMENT ON COLUMN postern.runs.planned_at IS 'Planned time of a scheduled run. Null for a manual request.';

COMMENT ON COLUMN postern.runs.idempotency_key IS 'Key of the requester. A second request with the same key returns this run.';

COMMENT ON COLUMN postern.runs.idempotency_request IS 'The request under this key, to notice a different one.';

COMMENT ON COLUMN postern.runs.published_at IS 'Time at which the end of the run was published. Null before.';

COMMENT ON COLUMN postern.runs.publish_after IS 'The end is not published before this time.';

COMMENT ON COLUMN postern.runs.proposal IS 'Machine-readable form of what needs approval. The detail says it in words.';

COMMENT ON COLUMN postern.runs.approvals IS 'Each approval: what was displayed, by whom it was approved, why and when.';

ALTER TABLE postern.runs ALTER COLUMN run ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.runs_run_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.schedules (
    name text NOT NULL,
    job text NOT NULL,
    cron text NOT NULL,
    time_zone text NOT NULL,
    overlap text NOT NULL,
    missed text NOT NULL,
    parameters jsonb NOT NULL,
    planned_at timestamp with time zone NOT NULL,
    skipped bigint NOT NULL,
    skipped_at timestamp with time zone,
    skipped_reason text NOT NULL,
    succeeded_at timestamp with time zone,
    paused_at timestamp with time zone,
    paused_by text NOT NULL,
    configured_at timestamp with time zone NOT NULL,
    CONSTRAINT schedules_missed_check CHECK ((missed = ANY (ARRAY['run'::text, 'skip'::text]))),
    CONSTRAINT schedules_overlap_check CHECK ((overlap = ANY (ARRAY['skip'::text, 'queue'::text])))
)
WITH (fillfactor='50');

ALTER TABLE postern.schedules OWNER TO postern_maintenance;

COMMENT ON TABLE postern.schedules IS 'Schedules of the configuration, with what was decided for them.';

COMMENT ON COLUMN postern.schedules.name IS 'Name of the schedule.';

COMMENT ON COLUMN postern.schedules.job IS 'Job that it requests.';

COMMENT ON COLUMN postern.schedules.cron IS 'Cron expression.';

COMMENT ON COLUMN postern.schedules.time_zone IS 'Time zone of the expression.';

COMMENT ON COLUMN postern.schedules.overlap IS 'What happens while the last run is open: skip or queue.';

COMMENT ON COLUMN postern.schedules.missed IS 'What happens with planned times that passed while no processor was running: run or skip.';

COMMENT ON COLUMN postern.schedules.parameters IS 'Parameters of the job.';

COMMENT ON COLUMN postern.schedules.planned_at IS 'Every planned time up to this one was decided: requested as a run, or skipped.';

COMMENT ON COLUMN postern.schedules.skipped IS 'Number of skipped times.';

COMMENT ON COLUMN postern.schedules.skipped_at IS 'The last skipped time.';

COMMENT ON COLUMN postern.schedules.skipped_reason IS 'Reason of the last skip.';

COMMENT ON COLUMN postern.schedules.succeeded_at IS 'Time at which a run of the schedule last succeeded.';

COMMENT ON COLUMN postern.schedules.paused_at IS 'Time at which an operator paused the schedule. Null while it is active.';

COMMENT ON COLUMN postern.schedules.paused_by IS 'Operator who paused it.';

COMMENT ON COLUMN postern.schedules.configured_at IS 'Time at which a process last reported that its configuration has the schedule.';

CREATE TABLE postern.schema_migrations (
    id integer NOT NULL,
    version_id bigint NOT NULL,
    is_applied boolean NOT NULL,
    tstamp timestamp without time zone DEFAULT now() NOT NULL
);

ALTER TABLE postern.schema_migrations OWNER TO postgres;

ALTER TABLE postern.schema_migrations ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME postern.schema_migrations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.source_types (
    source integer NOT NULL,
    event_type text NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    count bigint NOT NULL,
    longest_this_week interval DEFAULT '00:00:00'::interval NOT NULL,
    longest_last_week interval DEFAULT '00:00:00'::interval NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.source_types OWNER TO postern_maintenance;

COMMENT ON TABLE postern.source_types IS 'Event types that deliveries brought, at most 500 for each source. Rows are kept for ever.';

COMMENT ON COLUMN postern.source_types.source IS 'Source.';

COMMENT ON COLUMN postern.source_types.event_type IS 'Event type of the provider. (other) counts all types above the limit.';

COMMENT ON COLUMN postern.source_types.first_at IS 'Time at which the first event was stored.';

COMMENT ON COLUMN postern.source_types.last_at IS 'Time at which the last event was stored.';

COMMENT ON COLUMN postern.source_types.count IS 'About the number of stored events.';

COMMENT ON COLUMN postern.source_types.longest_this_week IS 'Longest interval between two events that ended in the week of the last event, from Monday (UTC).';

COMMENT ON COLUMN postern.source_types.longest_last_week IS 'The same of the week before.';

ALTER TABLE postern.sources ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.sources_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.spools (
    spool text NOT NULL,
    location text NOT NULL,
    drained_at timestamp with time zone NOT NULL,
    registered_at timestamp with time zone DEFAULT postern.clock_now(),
    reported_at timestamp with time zone,
    deliveries bigint,
    bytes bigint,
    oldest_at timestamp with time zone
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000');

ALTER TABLE postern.spools OWNER TO postern_maintenance;

COMMENT ON TABLE postern.spools IS 'Spools of running gateways, and of gateways that ended without reporting an empty spool.';

COMMENT ON COLUMN postern.spools.spool IS 'Id of the spool.';

COMMENT ON COLUMN postern.spools.location IS 'Machine and folder of the spool, for people.';

COMMENT ON COLUMN postern.spools.drained_at IS 'Every delivery that the gateway acknowledged before this time is in the log.';

COMMENT ON COLUMN postern.spools.registered_at IS 'Time at which the row was inserted.';

COMMENT ON COLUMN postern.spools.reported_at IS 'Time of the gateway''s last report about the spool.';

COMMENT ON COLUMN postern.spools.deliveries IS 'Number of deliveries in the spool at reported_at.';

COMMENT ON COLUMN postern.spools.bytes IS 'Size of the deliveries in the spool at reported_at.';

COMMENT ON COLUMN postern.spools.oldest_at IS 'No delivery that was in the spool at reported_at was acknowledged before this time. Null where the spool was empty or the time is unknown.';

CREATE TABLE postern.staged_objects (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    version_final boolean NOT NULL,
    version_at bigint NOT NULL,
    version_seen bigint NOT NULL,
    version_rank smallint NOT NULL,
    tied_states jsonb NOT NULL,
    overflow boolean NOT NULL,
    time_from bigint NOT NULL,
    time_to bigint NOT NULL,
    refetch_after bigint NOT NULL,
    ambiguous boolean NOT NULL,
    deleted boolean NOT NULL,
    state_hash bytea NOT NULL,
    exact_hash bytea NOT NULL,
    state jsonb,
    sanitized boolean NOT NULL,
    last_event_id bigint NOT NULL,
    revision bigint NOT NULL,
    rule_version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    overwritten_at bigint DEFAULT 0 NOT NULL,
    overwrite_seen bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN account SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN object_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN object_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN tied_states SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN tied_states SET COMPRESSION lz4;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN state_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN exact_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN state SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged_objects ALTER COLUMN state SET COMPRESSION lz4;

ALTER TABLE postern.staged_objects OWNER TO postern_maintenance;

COMMENT ON TABLE postern.staged_objects IS 'Objects that an open rebuild made from the log. A swap makes them live.';

COMMENT ON COLUMN postern.staged_objects.source IS 'Number of the source.';

COMMENT ON COLUMN postern.staged_objects.account IS 'Tenant inside the source. Empty where there is none.';

COMMENT ON COLUMN postern.staged_objects.object_type IS 'The provider''s type of the object.';

COMMENT ON COLUMN postern.staged_objects.object_id IS 'The provider''s id of the object.';

COMMENT ON COLUMN postern.staged_objects.version_final IS 'True after a permanent delete. No later version can replace it.';

COMMENT ON COLUMN postern.staged_objects.version_at IS 'Event time of the version. -2^63 means that there is no version yet.';

COMMENT ON COLUMN postern.staged_objects.version_seen IS 'Start of the refetch that read the version. 0 for a version from an event.';

COMMENT ON COLUMN postern.staged_objects.version_rank IS 'Order of versions that have the same time.';

COMMENT ON COLUMN postern.staged_objects.tied_states IS 'All different contents of exactly this version.';

COMMENT ON COLUMN postern.staged_objects.overflow IS 'There were more tied states than the set may hold.';

COMMENT ON COLUMN postern.staged_objects.time_from IS 'Start of the interval in which the state was observed.';

COMMENT ON COLUMN postern.staged_objects.time_to IS 'End of the interval in which the state was observed.';

COMMENT ON COLUMN postern.staged_objects.refetch_after IS 'A refetch that starts after this time is pending. 0 where none is.';

COMMENT ON COLUMN postern.staged_objects.ambiguous IS 'The tied states do not tell which of them is current.';

COMMENT ON COLUMN postern.staged_objects.deleted IS 'The object does not exist any more; the row is its tombstone.';

COMMENT ON COLUMN postern.staged_objects.state_hash IS 'Hash of the state without ignored paths. Equal hashes mean an unchanged object.';

COMMENT ON COLUMN postern.staged_objects.exact_hash IS 'Hash of the whole state.';

COMMENT ON COLUMN postern.staged_objects.state IS 'The object''s state. Null after redaction, or where the provider sent none.';

COMMENT ON COLUMN postern.staged_objects.sanitized IS 'The state contained text or numbers that jsonb refuses. They were replaced; the event''s body keeps the original.';

COMMENT ON COLUMN postern.staged_objects.last_event_id IS 'Event that made the current version.';

COMMENT ON COLUMN postern.staged_objects.revision IS 'Grows with each change of state, deleted or ambiguous.';

COMMENT ON COLUMN postern.staged_objects.rule_version IS 'Version of the version rule that decided the row.';

COMMENT ON COLUMN postern.staged_objects.created_at IS 'Time at which the row was inserted.';

COMMENT ON COLUMN postern.staged_objects.updated_at IS 'Time of the last change of this row.';

COMMENT ON COLUMN postern.staged_objects.overwritten_at IS 'Time at which an operator overwrote the object from the provider, in microseconds of the database clock. Events received before do not count. 0 where no operator did.';

COMMENT ON COLUMN postern.staged_objects.overwrite_seen IS 'Start of the refetch that an operator overwrote the object with, in microseconds on the provider''s clock. 0 where no operator did.';

CREATE TABLE postern.tokens (
    name text NOT NULL,
    role text NOT NULL,
    digest bytea NOT NULL,
    created_at timestamp with time zone DEFAULT postern.clock_now() NOT NULL,
    created_by text NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    used_on date,
    CONSTRAINT tokens_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT tokens_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'::text)),
    CONSTRAINT tokens_role_check CHECK ((role = ANY (ARRAY['reader'::text, 'approver'::text, 'operator'::text, 'operator,approver'::text])))
);

ALTER TABLE postern.tokens OWNER TO postern_maintenance;

COMMENT ON TABLE postern.tokens IS 'Access tokens of the HTTP API. A name is never used twice, so that the audit trail stays clear.';

COMMENT ON COLUMN postern.tokens.name IS 'Name of the token.';

COMMENT ON COLUMN postern.tokens.role IS 'reader, approver, operator or operator,approver.';

COMMENT ON COLUMN postern.tokens.digest IS 'SHA-256 of the token.';

COMMENT ON COLUMN postern.tokens.created_at IS 'Time at which the token was created.';

COMMENT ON COLUMN postern.tokens.created_by IS 'Operator who created it.';

COMMENT ON COLUMN postern.tokens.expires_at IS 'End of its validity. Null for none.';

COMMENT ON COLUMN postern.tokens.revoked_at IS 'Time at which it was revoked. Null while it is valid.';

COMMENT ON COLUMN postern.tokens.used_on IS 'Last day (UTC) on which the token was used.';

CREATE TABLE postern.verify_reports (
    id bigint NOT NULL,
    stored_at timestamp with time zone DEFAULT postern.clock_now() NOT NULL,
    stored_by text NOT NULL,
    report jsonb NOT NULL
);

ALTER TABLE postern.verify_reports OWNER TO postern_maintenance;

COMMENT ON TABLE postern.verify_reports IS 'The last 20 reports of postern verify --store-report.';

COMMENT ON COLUMN postern.verify_reports.id IS 'Number of the report.';

COMMENT ON COLUMN postern.verify_reports.stored_at IS 'Time at which it was stored.';

COMMENT ON COLUMN postern.verify_reports.stored_by IS 'Operator who stored it.';

COMMENT ON COLUMN postern.verify_reports.report IS 'The report as JSON, without the single violations: they have ids of objects, which a redaction would have to erase.';

ALTER TABLE postern.verify_reports ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.verify_reports_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.watermarks (
    source integer NOT NULL,
    account text NOT NULL,
    subject text NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    run bigint NOT NULL,
    recorded_at timestamp with time zone NOT NULL,
    scope text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.watermarks OWNER TO postern_maintenance;

COMMENT ON TABLE postern.watermarks IS 'Intervals on the provider''s clock for which the log is complete: everything that the provider has is in the log and has its outcome.';

COMMENT ON COLUMN postern.watermarks.source IS 'Number of the source.';

COMMENT ON COLUMN postern.watermarks.account IS 'Tenant inside the source.';

COMMENT ON COLUMN postern.watermarks.subject IS 'The data that is complete: events, deliveries, or "type", "versions" or "changes" and an object type. "run" and a number: the interval that an unfinished run has read.';

COMMENT ON COLUMN postern.watermarks.since IS 'Start of the interval.';

COMMENT ON COLUMN postern.watermarks.until IS 'End of the interval.';

COMMENT ON COLUMN postern.watermarks.run IS 'Run that extended the interval last.';

COMMENT ON COLUMN postern.watermarks.recorded_at IS 'Time of that extension.';

COMMENT ON COLUMN postern.watermarks.scope IS 'Digest of the list''s definition that the interval was checked with.';

ALTER TABLE ONLY postern.activity_hours
    ADD CONSTRAINT activity_hours_pkey PRIMARY KEY (hour, source);

ALTER TABLE ONLY postern.activity_minutes
    ADD CONSTRAINT activity_minutes_pkey PRIMARY KEY (minute, source);

ALTER TABLE ONLY postern.activity_secrets
    ADD CONSTRAINT activity_secrets_pkey PRIMARY KEY (source, hour, secret);

ALTER TABLE ONLY postern.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.change_feed
    ADD CONSTRAINT change_feed_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY postern.changes
    ADD CONSTRAINT changes_pkey PRIMARY KEY (object_id, object_type, account, source);

ALTER TABLE ONLY postern.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (job, run);

ALTER TABLE ONLY postern.console_sessions
    ADD CONSTRAINT console_sessions_pkey PRIMARY KEY (digest);

ALTER TABLE ONLY postern.disconnected_accounts
    ADD CONSTRAINT disconnected_accounts_pkey PRIMARY KEY (source, account);

ALTER TABLE ONLY postern.drifts
    ADD CONSTRAINT drifts_pkey PRIMARY KEY (run, object_type, object_id);

ALTER TABLE ONLY postern.dropped_partitions
    ADD CONSTRAINT dropped_partitions_pkey PRIMARY KEY (name);

ALTER TABLE ONLY postern.effect_baselines
    ADD CONSTRAINT effect_baselines_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.effect_schedule_clock
    ADD CONSTRAINT effect_schedule_clock_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY postern.effect_steps
    ADD CONSTRAINT effect_steps_pkey PRIMARY KEY (effect, step, undo);

ALTER TABLE ONLY postern.effect_window_changes
    ADD CONSTRAINT effect_window_changes_pkey PRIMARY KEY (rule, source, object_type, account, object_id, window_end, window_start, summary, number);

ALTER TABLE ONLY postern.effect_window_waits
    ADD CONSTRAINT effect_window_waits_pkey PRIMARY KEY (rule, source, object_type, account, object_id, window_end, window_start);

ALTER TABLE ONLY postern.effect_windows
    ADD CONSTRAINT effect_windows_pkey PRIMARY KEY (rule, source, object_type, cron, time_zone);

ALTER TABLE ONLY postern.effects
    ADD CONSTRAINT effects_pkey PRIMARY KEY (effect);

ALTER TABLE ONLY postern.event_conflicts
    ADD CONSTRAINT event_conflicts_event_fingerprint_key UNIQUE (event, fingerprint);

ALTER TABLE ONLY postern.event_conflicts
    ADD CONSTRAINT event_conflicts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.event_keys
    ADD CONSTRAINT event_keys_pkey PRIMARY KEY (source, key);

ALTER TABLE ONLY postern.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.feed_cursors
    ADD CONSTRAINT feed_cursors_pkey PRIMARY KEY (name);

ALTER TABLE ONLY postern.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (scope, key);

ALTER TABLE ONLY postern.listed_objects
    ADD CONSTRAINT listed_objects_pkey PRIMARY KEY (run, object_type, object);

ALTER TABLE ONLY postern.log_floor
    ADD CONSTRAINT log_floor_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY postern.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (name, condition);

ALTER TABLE ONLY postern.object_scans
    ADD CONSTRAINT object_scans_pkey PRIMARY KEY (run, object_type);

ALTER TABLE ONLY postern.objects
    ADD CONSTRAINT objects_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.orphans
    ADD CONSTRAINT orphans_pkey PRIMARY KEY (run, object_type, object_id);

ALTER TABLE ONLY postern.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (batch);

ALTER TABLE ONLY postern.outcomes
    ADD CONSTRAINT outcomes_pkey PRIMARY KEY (event_id, run);

ALTER TABLE ONLY postern.processes
    ADD CONSTRAINT processes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.rate_budgets
    ADD CONSTRAINT rate_budgets_pkey PRIMARY KEY (source, account);

ALTER TABLE ONLY postern.recent_missing
    ADD CONSTRAINT recent_missing_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.redacted_events
    ADD CONSTRAINT redacted_events_pkey PRIMARY KEY (event);

ALTER TABLE ONLY postern.redactions
    ADD CONSTRAINT redactions_pkey PRIMARY KEY (run);

ALTER TABLE ONLY postern.refetch_requests
    ADD CONSTRAINT refetch_requests_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.rejections
    ADD CONSTRAINT rejections_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.republish_passes
    ADD CONSTRAINT republish_passes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.retained_objects
    ADD CONSTRAINT retained_objects_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (run);

ALTER TABLE ONLY postern.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);

ALTER TABLE ONLY postern.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.source_types
    ADD CONSTRAINT source_types_pkey PRIMARY KEY (source, event_type);

ALTER TABLE ONLY postern.sources
    ADD CONSTRAINT sources_name_key UNIQUE (name);

ALTER TABLE ONLY postern.sources
    ADD CONSTRAINT sources_pkey PRIMARY KEY (number);

ALTER TABLE ONLY postern.spools
    ADD CONSTRAINT spools_pkey PRIMARY KEY (spool);

ALTER TABLE ONLY postern.staged_objects
    ADD CONSTRAINT staged_objects_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.tokens
    ADD CONSTRAINT tokens_digest_key UNIQUE (digest);

ALTER TABLE ONLY postern.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (name);

ALTER TABLE ONLY postern.verify_reports
    ADD CONSTRAINT verify_reports_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.watermarks
    ADD CONSTRAINT watermarks_pkey PRIMARY KEY (source, account, subject);

CREATE INDEX audit_run ON postern.audit USING btree (run) WHERE (run IS NOT NULL);

CREATE UNIQUE INDEX changes_by_number ON postern.changes USING btree (number);

CREATE INDEX drifts_object ON postern.drifts USING btree (source, account, object_type, object_id);

CREATE INDEX effect_steps_unknown ON postern.effect_steps USING btree (effect) WHERE ((state = 'unknown'::text) OR ((state = 'reserved'::text) AND (first_attempt_at < reserved_at)));

CREATE INDEX effects_awaiting_approval ON postern.effects USING btree (rule, planned_at) WHERE ((state = 'awaiting_approval'::text) AND (expires_at IS NULL));

CREATE INDEX effects_due ON postern.effects USING btree (destination, due) WHERE (state = ANY (ARRAY['planned'::text, 'failed'::text]));

CREATE INDEX effects_event ON postern.effects USING btree (event_id);

CREATE INDEX effects_expiring ON postern.effects USING btree (expires_at) WHERE ((state = 'awaiting_approval'::text) AND (expires_at IS NOT NULL));

CREATE INDEX effects_in_order ON postern.effects USING btree (source, account, object_type, object_id, rule, effect) WHERE (in_order AND (state = ANY (ARRAY['planned'::text, 'running'::text, 'failed'::text])));

CREATE UNIQUE INDEX effects_key ON postern.effects USING btree (key, rule_version, forced);

CREATE INDEX effects_leased ON postern.effects USING btree (lease_until) WHERE (state = 'running'::text);

CREATE INDEX effects_object ON postern.effects USING btree (source, account, object_type, object_id);

CREATE INDEX effects_summaries ON postern.effects USING gin (((template_data -> 'summary'::text)) jsonb_path_ops) WHERE (template_data ? 'summary'::text);

CREATE INDEX effects_unfinished ON postern.effects USING btree (state, effect) WHERE (state = ANY (ARRAY['awaiting_approval'::text, 'failed'::text, 'needs_review'::text]));

CREATE INDEX idempotency_keys_created ON postern.idempotency_keys USING btree (created_at);

CREATE INDEX object_scans_done ON postern.object_scans USING btree (source, account, object_type, run) WHERE (phase = 'done'::text);

CREATE INDEX object_scans_not_listable ON postern.object_scans USING btree (source, account, object_type, run) WHERE (phase = 'not_listable'::text);

CREATE INDEX objects_refetch_pending ON postern.objects USING btree (source, account, object_type, object_id) WHERE (refetch_after <> 0);

CREATE INDEX outbox_forward_pending ON postern.outbox USING btree (batch) WHERE forward_pending;

CREATE INDEX outbox_unnumbered ON postern.outbox USING btree (batch) WHERE (NOT numbered);

CREATE INDEX outbox_unsent ON postern.outbox USING btree (created_at) WHERE (sent_at IS NULL);

CREATE INDEX outcomes_by_object ON postern.outcomes USING btree (object, event_id) WHERE (object <> 0);

CREATE INDEX outcomes_dead ON postern.outcomes USING btree (event_id) WHERE (status = 'dead'::text);

CREATE INDEX outcomes_due ON postern.outcomes USING btree (due) WHERE ((status = 'failed'::text) AND (run = 0));

CREATE INDEX outcomes_of_runs ON postern.outcomes USING btree (run) WHERE (run > 0);

CREATE INDEX outcomes_unfinished ON postern.outcomes USING btree (run, event_id) WHERE (status = ANY (ARRAY['failed'::text, 'dead'::text]));

CREATE INDEX redactions_requested ON postern.redactions USING btree (requested_by) WHERE (requested_by IS NOT NULL);

CREATE INDEX refetch_requests_due ON postern.refetch_requests USING btree (source, due);

CREATE INDEX rejections_by_source ON postern.rejections USING btree (source, id);

CREATE INDEX republish_passes_open ON postern.republish_passes USING btree (id) WHERE (ended_at IS NULL);

CREATE INDEX runs_ended ON postern.runs USING btree (ended_at) WHERE (ended_at IS NOT NULL);

CREATE UNIQUE INDEX runs_idempotency_key ON postern.runs USING btree (idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE UNIQUE INDEX runs_one_rebuild ON postern.runs USING btree (((params ->> 'source'::text))) WHERE ((job = 'rebuild'::text) AND (ended_at IS NULL));

CREATE UNIQUE INDEX runs_one_retention ON postern.runs USING btree (job) WHERE ((job = 'retention'::text) AND (ended_at IS NULL));

CREATE INDEX runs_open ON postern.runs USING btree (run) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX runs_open_by_job ON postern.runs USING btree (job, status) WHERE (ended_at IS NULL);

CREATE UNIQUE INDEX runs_planned ON postern.runs USING btree (schedule, planned_at) WHERE (planned_at IS NOT NULL);

CREATE INDEX runs_scheduled ON postern.runs USING btree (schedule, run) WHERE (schedule IS NOT NULL);

CREATE INDEX runs_unpublished ON postern.runs USING btree (run) WHERE ((ended_at IS NOT NULL) AND (published_at IS NULL));

CREATE TRIGGER audit_append_only BEFORE DELETE OR UPDATE ON postern.audit FOR EACH ROW EXECUTE FUNCTION postern.reject_audit_change();

CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON postern.audit FOR EACH STATEMENT EXECUTE FUNCTION postern.reject_audit_change();

CREATE TRIGGER event_conflicts_redacted BEFORE INSERT ON postern.event_conflicts FOR EACH ROW EXECUTE FUNCTION postern.drop_redacted_conflict();

CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON postern.events FOR EACH ROW EXECUTE FUNCTION postern.reject_change();

CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON postern.events FOR EACH STATEMENT EXECUTE FUNCTION postern.reject_change();

CREATE TRIGGER runs_delete_search_digests BEFORE UPDATE ON postern.runs FOR EACH ROW WHEN (((new.job = 'redact'::text) AND (new.ended_at IS NOT NULL))) EXECUTE FUNCTION postern.delete_search_digests();

ALTER TABLE ONLY postern.disconnected_accounts
    ADD CONSTRAINT disconnected_accounts_source_fkey FOREIGN KEY (source) REFERENCES postern.sources(number);

ALTER TABLE ONLY postern.drifts
    ADD CONSTRAINT drifts_run_fkey FOREIGN KEY (run) REFERENCES postern.runs(run) ON DELETE CASCADE;

ALTER TABLE ONLY postern.effect_steps
    ADD CONSTRAINT effect_steps_effect_fkey FOREIGN KEY (effect) REFERENCES postern.effects(effect) ON DELETE CASCADE;

ALTER TABLE ONLY postern.object_scans
    ADD CONSTRAINT object_scans_run_fkey FOREIGN KEY (run) REFERENCES postern.runs(run) ON DELETE CASCADE;

ALTER TABLE ONLY postern.orphans
    ADD CONSTRAINT orphans_run_fkey FOREIGN KEY (run) REFERENCES postern.runs(run) ON DELETE CASCADE;

ALTER TABLE ONLY postern.watermarks
    ADD CONSTRAINT watermarks_source_fkey FOREIGN KEY (source) REFERENCES postern.sources(number);

GRANT ALL ON SCHEMA mirror TO postern_maintenance;
GRANT USAGE ON SCHEMA mirror TO postern_reader;
GRANT USAGE ON SCHEMA mirror TO postern_operator;

GRANT ALL ON SCHEMA postern TO postern_maintenance;
GRANT USAGE ON SCHEMA postern TO postern_gateway;
GRANT USAGE ON SCHEMA postern TO postern_processor;
GRANT USAGE ON SCHEMA postern TO postern_operator;

REVOKE ALL ON FUNCTION postern.delete_search_digests() FROM PUBLIC;

REVOKE ALL ON FUNCTION postern.end_redaction(p_run bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.end_redaction(p_run bigint) TO postern_processor;

REVOKE ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) TO postern_gateway;
GRANT ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) TO postern_processor;

REVOKE ALL ON FUNCTION postern.raise_floor() FROM PUBLIC;
GRANT ALL ON FUNCTION postern.raise_floor() TO postern_processor;
GRANT ALL ON FUNCTION postern.raise_floor() TO postern_operator;

REVOKE ALL ON FUNCTION postern.redact_conflicts(p_run bigint, p_conflicts bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.redact_conflicts(p_run bigint, p_conflicts bigint[]) TO postern_processor;

REVOKE ALL ON FUNCTION postern.redact_copies(p_run bigint, p_table text, p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_read timestamp with time zone[]) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.redact_copies(p_run bigint, p_table text, p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_read timestamp with time zone[]) TO postern_processor;

REVOKE ALL ON FUNCTION postern.redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[], OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[], OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint) TO postern_processor;

GRANT SELECT,UPDATE ON TABLE postern.change_feed TO postern_operator;
GRANT SELECT,UPDATE ON TABLE postern.change_feed TO postern_processor;

GRANT SELECT ON TABLE mirror.change_feed TO postern_operator;
GRANT SELECT ON TABLE mirror.change_feed TO postern_reader;

GRANT SELECT ON TABLE postern.changes TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.changes TO postern_processor;

GRANT SELECT ON TABLE postern.objects TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.objects TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.sources TO postern_gateway;
GRANT SELECT,INSERT ON TABLE postern.sources TO postern_processor;
GRANT SELECT ON TABLE postern.sources TO postern_operator;

GRANT UPDATE(api_reads) ON TABLE postern.sources TO postern_processor;

GRANT SELECT ON TABLE mirror.changes TO postern_operator;
GRANT SELECT ON TABLE mirror.changes TO postern_reader;

GRANT SELECT,INSERT ON TABLE postern.events TO postern_gateway;
GRANT SELECT ON TABLE postern.events TO postern_operator;
GRANT SELECT ON TABLE postern.events TO postern_processor;

GRANT SELECT ON TABLE postern.redacted_events TO postern_gateway;
GRANT SELECT ON TABLE postern.redacted_events TO postern_operator;
GRANT SELECT ON TABLE postern.redacted_events TO postern_processor;

GRANT SELECT ON TABLE mirror.events TO postern_operator;
GRANT SELECT ON TABLE mirror.events TO postern_reader;

GRANT SELECT ON TABLE mirror.objects TO postern_operator;
GRANT SELECT ON TABLE mirror.objects TO postern_reader;

GRANT SELECT ON TABLE postern.outcomes TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.outcomes TO postern_processor;

GRANT SELECT ON TABLE mirror.outcomes TO postern_operator;
GRANT SELECT ON TABLE mirror.outcomes TO postern_reader;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.activity_hours TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.activity_minutes TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.activity_secrets TO postern_operator;

GRANT SELECT ON TABLE postern.audit TO postern_operator;

GRANT INSERT(actor) ON TABLE postern.audit TO postern_gateway;
GRANT INSERT(actor) ON TABLE postern.audit TO postern_operator;

GRANT INSERT(via) ON TABLE postern.audit TO postern_gateway;
GRANT INSERT(via) ON TABLE postern.audit TO postern_operator;

GRANT INSERT(address) ON TABLE postern.audit TO postern_gateway;
GRANT INSERT(address) ON TABLE postern.audit TO postern_operator;

GRANT INSERT(action) ON TABLE postern.audit TO postern_gateway;
GRANT INSERT(action) ON TABLE postern.audit TO postern_operator;

GRANT INSERT(target) ON TABLE postern.audit TO postern_gateway;
GRANT INSERT(target) ON TABLE postern.audit TO postern_operator;

GRANT INSERT(reason) ON TABLE postern.audit TO postern_gateway;
GRANT INSERT(reason) ON TABLE postern.audit TO postern_operator;

GRANT INSERT(run) ON TABLE postern.audit TO postern_gateway;
GRANT INSERT(run) ON TABLE postern.audit TO postern_operator;

GRANT SELECT ON TABLE postern.checkpoints TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.checkpoints TO postern_processor;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.console_sessions TO postern_operator;

GRANT SELECT ON TABLE postern.disconnected_accounts TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.disconnected_accounts TO postern_processor;

GRANT SELECT ON TABLE postern.drifts TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.drifts TO postern_processor;

GRANT SELECT ON TABLE postern.dropped_partitions TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.dropped_partitions TO postern_processor;

GRANT SELECT ON TABLE postern.effect_baselines TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.effect_baselines TO postern_processor;

GRANT SELECT ON TABLE postern.effect_schedule_clock TO postern_operator;
GRANT SELECT,UPDATE ON TABLE postern.effect_schedule_clock TO postern_processor;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.effect_steps TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.effect_steps TO postern_processor;

GRANT SELECT,INSERT,DELETE ON TABLE postern.effect_window_changes TO postern_processor;

GRANT SELECT ON TABLE postern.effect_window_waits TO postern_operator;
GRANT SELECT,INSERT,DELETE ON TABLE postern.effect_window_waits TO postern_processor;

GRANT SELECT ON TABLE postern.effect_windows TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.effect_windows TO postern_processor;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.effects TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.effects TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.event_conflicts TO postern_gateway;
GRANT SELECT ON TABLE postern.event_conflicts TO postern_operator;

GRANT SELECT(id) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(source) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(account) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(headers) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(body) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.event_keys TO postern_gateway;
GRANT SELECT ON TABLE postern.event_keys TO postern_operator;
GRANT SELECT ON TABLE postern.event_keys TO postern_processor;

GRANT USAGE ON SEQUENCE postern.event_sequence TO postern_gateway;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.feed_cursors TO postern_operator;
GRANT SELECT ON TABLE postern.feed_cursors TO postern_processor;

GRANT UPDATE(behind_since) ON TABLE postern.feed_cursors TO postern_processor;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.idempotency_keys TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.listed_objects TO postern_processor;

GRANT SELECT,UPDATE ON TABLE postern.log_floor TO postern_gateway;
GRANT SELECT,UPDATE ON TABLE postern.log_floor TO postern_processor;
GRANT SELECT ON TABLE postern.log_floor TO postern_operator;

GRANT SELECT ON TABLE postern.notifications TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.notifications TO postern_processor;

GRANT SELECT ON TABLE postern.object_scans TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.object_scans TO postern_processor;

GRANT SELECT,INSERT,DELETE ON TABLE postern.orphans TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.outbox TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.outbox TO postern_processor;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.processes TO postern_operator;

GRANT SELECT ON TABLE postern.rate_budgets TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.rate_budgets TO postern_processor;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.recent_missing TO postern_processor;

GRANT SELECT ON TABLE postern.redactions TO postern_operator;
GRANT SELECT ON TABLE postern.redactions TO postern_processor;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.refetch_requests TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.refetch_requests TO postern_processor;

GRANT SELECT,INSERT,DELETE ON TABLE postern.rejections TO postern_gateway;
GRANT SELECT ON TABLE postern.rejections TO postern_operator;

GRANT SELECT(id) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(source) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(detail) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(headers) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(body) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.republish_passes TO postern_operator;
GRANT SELECT,UPDATE ON TABLE postern.republish_passes TO postern_processor;

GRANT SELECT ON TABLE postern.retained_objects TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.retained_objects TO postern_processor;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.runs TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.runs TO postern_processor;

GRANT SELECT,UPDATE ON TABLE postern.schedules TO postern_operator;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.schedules TO postern_processor;

GRANT SELECT ON TABLE postern.schema_migrations TO postern_gateway;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_processor;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_operator;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_maintenance;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.source_types TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.spools TO postern_gateway;
GRANT SELECT,DELETE ON TABLE postern.spools TO postern_operator;
GRANT SELECT ON TABLE postern.spools TO postern_processor;

GRANT SELECT ON TABLE postern.staged_objects TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.staged_objects TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.tokens TO postern_operator;

GRANT UPDATE(revoked_at) ON TABLE postern.tokens TO postern_operator;

GRANT UPDATE(used_on) ON TABLE postern.tokens TO postern_operator;

GRANT SELECT,INSERT,DELETE ON TABLE postern.verify_reports TO postern_operator;

GRANT SELECT ON TABLE postern.watermarks TO postern_operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.watermarks TO postern_processor;
