CREATE SCHEMA mirror;

ALTER SCHEMA mirror OWNER TO postgres;

CREATE SCHEMA postern;

ALTER SCHEMA postern OWNER TO postgres;

CREATE FUNCTION postern.body_json(body bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
  too_large CONSTANT text := '[0-9][eE][+-]?0*(30[1-9]|3[1-9][0-9]|[4-9][0-9]{2}|[1-9][0-9]{3})';
  content text;
BEGIN
  content := convert_from(body, 'UTF8');
  -- Texts that look like such a number are common (hashes), so they are taken out before it counts.
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

CREATE FUNCTION postern.drop_redacted_conflict() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(NEW.event);
  IF EXISTS (SELECT FROM postern.redacted r WHERE r.event = NEW.event) THEN
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
    RAISE EXCEPTION 'end redaction: run % is no redaction that is under way', p_run USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE redactions SET asked = asked - 'finds', ended_at = clock_now(), updated_at = clock_now() WHERE run = p_run AND ended_at IS NULL;
  UPDATE runs SET asked = asked - 'finds' WHERE run = p_run;
  UPDATE runs r SET detail = 'it told of an event that was redacted' WHERE r.detail <> '' AND EXISTS (
    SELECT FROM regexp_matches(r.detail, '\mevent ([0-9]{1,19})\M', 'g') AS m(found)
    JOIN redacted d ON d.event = CASE WHEN m.found[1]::numeric <= 9223372036854775807 THEN m.found[1]::bigint END);
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
  made int := 0;
BEGIN
  IF to_ms - from_ms > 400 * day_ms THEN
    RAISE EXCEPTION 'ensure_partitions: more than 400 days asked for';
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('postern.partitions', 0));
  FOR lo IN SELECT generate_series((from_ms / day_ms) * day_ms, to_ms, day_ms) LOOP
    part := 'events_' || to_char(to_timestamp(lo / 1000) AT TIME ZONE 'UTC', 'YYYYMMDD');
    CONTINUE WHEN to_regclass('postern.' || part) IS NOT NULL;
    EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING ALL)', part);
    EXECUTE format('CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', part);
    EXECUTE format('ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', part, lo << 20, (lo + day_ms) << 20);
    made := made + 1;
  END LOOP;
  RETURN made;
END
$$;

ALTER FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.event_time(id bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$SELECT to_timestamp((id >> 20) / 1000.0)$$;

ALTER FUNCTION postern.event_time(id bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.forget_finds() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $$
BEGIN
  NEW.asked := NEW.asked - 'finds';
  UPDATE redactions SET asked = asked - 'finds', updated_at = clock_now() WHERE run = NEW.run AND asked ? 'finds';
  RETURN NEW;
END
$$;

ALTER FUNCTION postern.forget_finds() OWNER TO postern_maintenance;

CREATE FUNCTION postern.null_hash(deleted boolean) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
  SELECT sha256(convert_to(CASE WHEN deleted THEN '-null' ELSE '+null' END, 'UTF8'))
$$;

ALTER FUNCTION postern.null_hash(deleted boolean) OWNER TO postern_maintenance;

CREATE FUNCTION postern.provider_time(us bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$
  -- Up to the year 9999: what a hostile body claims beyond must not make the view unreadable.
  SELECT CASE WHEN us BETWEEN 1 AND 253402300799999999 THEN timestamptz 'epoch' + us * interval '1 microsecond' END
$$;

ALTER FUNCTION postern.provider_time(us bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.raise_floor() RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'postern', 'pg_temp'
    AS $$
  UPDATE postern.log_floor SET ms = greatest(ms, postern.clock_ms(), (SELECT max(e.id) >> 20 FROM postern.events e)) RETURNING ms
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
    RAISE EXCEPTION 'redact conflicts: run % is no redaction that is under way', p_run USING ERRCODE = 'insufficient_privilege';
  END IF;
  UPDATE event_conflicts SET body = '', headers = '{}' WHERE id = ANY(p_conflicts) AND (body <> '' OR headers <> '{}');
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
$_$;

ALTER FUNCTION postern.redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[], OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.refuse_audit_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: % is refused', lower(TG_OP) USING ERRCODE = 'insufficient_privilege';
END
$$;

ALTER FUNCTION postern.refuse_audit_change() OWNER TO postern_maintenance;

CREATE FUNCTION postern.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    -- An audited event may be cleared, by whoever may write both, and nothing else of it may change.
    OLD.body := NULL;
    OLD.headers := '{}';
    IF OLD IS NOT DISTINCT FROM NEW AND EXISTS (SELECT FROM postern.redacted r WHERE r.event = NEW.id) THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'the event log is append-only: % on % is refused', lower(TG_OP), TG_TABLE_NAME
    USING ERRCODE = 'insufficient_privilege', HINT = 'retention drops whole partitions, and postern redact clears events; nothing else changes a stored event';
END
$$;

ALTER FUNCTION postern.refuse_change() OWNER TO postern_maintenance;

CREATE FUNCTION postern.version_json(final boolean, at bigint, seen bigint, rank smallint) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
  SELECT CASE WHEN at > -9223372036854775808 THEN jsonb_build_object('final', final, 'at', at, 'seen', seen, 'rank', rank) END
$$;

ALTER FUNCTION postern.version_json(final boolean, at bigint, seen bigint, rank smallint) OWNER TO postern_maintenance;

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
    CONSTRAINT events_origin_check CHECK ((origin = ANY (ARRAY['webhook'::text, 'reconcile'::text, 'hint'::text, 'import'::text])))
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

COMMENT ON COLUMN postern.events.body IS 'exact bytes of the delivery; null where another event of the same delivery (delivery_id) holds them';

CREATE TABLE postern.redacted (
    event bigint NOT NULL,
    run bigint NOT NULL,
    at timestamp with time zone NOT NULL
);

ALTER TABLE postern.redacted OWNER TO postern_maintenance;

COMMENT ON TABLE postern.redacted IS 'events whose body and headers were cleared, also of those that retention has dropped since';

CREATE TABLE postern.sources (
    number integer NOT NULL,
    name text NOT NULL,
    provider text NOT NULL,
    added_at timestamp with time zone DEFAULT postern.clock_now() NOT NULL,
    api_reads text[]
);

ALTER TABLE postern.sources OWNER TO postern_maintenance;

COMMENT ON COLUMN postern.sources.api_reads IS 'what a processor can read of the provider''s API: object, objects, events; empty without a section api; null before a processor has reported';

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
           FROM postern.redacted r
          WHERE (r.event = e.id))) AS redacted
   FROM (postern.events e
     JOIN postern.sources s ON ((s.number = e.source)));

ALTER TABLE mirror.events OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.events IS 'the log: body holds the exact bytes, body_json the same as jsonb where jsonb can hold it';

COMMENT ON COLUMN mirror.events.body_json IS 'the body as jsonb; null where jsonb cannot hold it, or only with numbers of more than 300 digits';

COMMENT ON COLUMN mirror.events.body_json_omitted IS 'the event has a body, and body_json is null: read body';

COMMENT ON COLUMN mirror.events.redacted IS 'body and headers were cleared for good';

CREATE TABLE postern.objects (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    version_final boolean NOT NULL,
    version_at bigint NOT NULL,
    version_seen bigint NOT NULL,
    version_rank smallint NOT NULL,
    tie_set jsonb NOT NULL,
    overflow boolean NOT NULL,
    window_lo bigint NOT NULL,
    window_hi bigint NOT NULL,
    look_after bigint NOT NULL,
    ambiguous boolean NOT NULL,
    deleted boolean NOT NULL,
    state_hash bytea NOT NULL,
    exact_hash bytea NOT NULL,
    state jsonb,
    repaired boolean NOT NULL,
    last_event_id bigint NOT NULL,
    revision bigint NOT NULL,
    rule_version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    settled bigint DEFAULT 0 NOT NULL,
    overwrite_seen bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
ALTER TABLE ONLY postern.objects ALTER COLUMN account SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN object_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN object_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN tie_set SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN tie_set SET COMPRESSION lz4;
ALTER TABLE ONLY postern.objects ALTER COLUMN state_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN exact_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN state SET STORAGE MAIN;
ALTER TABLE ONLY postern.objects ALTER COLUMN state SET COMPRESSION lz4;

ALTER TABLE postern.objects OWNER TO postern_maintenance;

COMMENT ON TABLE postern.objects IS 'one row per object; version_*, window_* and look_after are provider time in microseconds; version_at = -2^63 means no version yet';

COMMENT ON COLUMN postern.objects.settled IS 'what was received before does not count, in microseconds of our clock; 0 where no person has had the object settled';

COMMENT ON COLUMN postern.objects.overwrite_seen IS 'when the refetch began with which an operator overwrote the object, in microseconds of the provider''s clock; 0 where none did';

CREATE VIEW mirror.objects AS
 SELECT s.name AS source,
    o.account,
    o.object_type,
    o.object_id,
    o.state,
    o.deleted,
    o.ambiguous,
    o.repaired,
    postern.provider_time(o.look_after) AS look_after,
    postern.version_json(o.version_final, o.version_at, o.version_seen, o.version_rank) AS version,
    o.revision,
    o.last_event_id,
    o.rule_version,
    o.created_at,
    o.updated_at,
    ((o.tie_set = '[]'::jsonb) AND (o.version_at > '-9223372036854775808'::bigint)) AS redacted
   FROM (postern.objects o
     JOIN postern.sources s ON ((s.number = o.source)));

ALTER TABLE mirror.objects OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.objects IS 'the mirror: one row per object; contract kept across versions';

COMMENT ON COLUMN mirror.objects.redacted IS 'the state was cleared for good; a newer event or refetch makes it false again';

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

COMMENT ON COLUMN postern.outcomes.object IS 'hash of (source, account, object_type, object_id), 0 where the event concerns no object';

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

COMMENT ON VIEW mirror.outcomes IS 'what became of each event; run 0 is live';

CREATE TABLE postern.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT postern.clock_now() NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    who text NOT NULL,
    via text NOT NULL,
    address text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    reason text NOT NULL,
    run bigint,
    CONSTRAINT audit_action_check CHECK ((action <> ''::text)),
    CONSTRAINT audit_via_check CHECK ((via = ANY (ARRAY['token'::text, 'loopback'::text, 'command'::text])))
);

ALTER TABLE postern.audit OWNER TO postern_maintenance;

COMMENT ON TABLE postern.audit IS 'every change that a person made, by the admin interface or by a command';

COMMENT ON COLUMN postern.audit.database_user IS 'the login that the change was made with, which PostgreSQL has proven; who may only insert has no say in it, nor in the time';

COMMENT ON COLUMN postern.audit.who IS 'via token: its name; via command: the account and machine that the command told; via loopback: nobody was asked';

ALTER TABLE postern.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.auditor_passes (
    id bigint NOT NULL,
    wanted_at timestamp with time zone,
    wanted_by text NOT NULL,
    reason text NOT NULL,
    ended_at timestamp with time zone,
    published_at timestamp with time zone,
    missing bigint DEFAULT 0 NOT NULL,
    due bigint DEFAULT 0 NOT NULL,
    detail text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.auditor_passes OWNER TO postern_maintenance;

COMMENT ON TABLE postern.auditor_passes IS 'row 0 is the auditor''s own passes; each other row is a pass that somebody asked for';

COMMENT ON COLUMN postern.auditor_passes.ended_at IS 'row 0: when a pass last came to its end; else when that pass did: nothing that was missing then is left out';

COMMENT ON COLUMN postern.auditor_passes.published_at IS 'when events were last published again; missing and due are how many those were, of row 0 in one pass, else in all of them together';

COMMENT ON COLUMN postern.auditor_passes.detail IS 'why the last pass has not come to its end';

ALTER TABLE postern.auditor_passes ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME postern.auditor_passes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.bases (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    version_final boolean NOT NULL,
    version_at bigint NOT NULL,
    version_seen bigint NOT NULL,
    version_rank smallint NOT NULL,
    tie_set jsonb NOT NULL,
    overflow boolean NOT NULL,
    window_lo bigint NOT NULL,
    window_hi bigint NOT NULL,
    look_after bigint NOT NULL,
    ambiguous boolean NOT NULL,
    deleted boolean NOT NULL,
    state_hash bytea NOT NULL,
    exact_hash bytea NOT NULL,
    state jsonb,
    repaired boolean NOT NULL,
    last_event_id bigint NOT NULL,
    revision bigint NOT NULL,
    rule_version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    settled bigint DEFAULT 0 NOT NULL,
    overwrite_seen bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
ALTER TABLE ONLY postern.bases ALTER COLUMN account SET STORAGE MAIN;
ALTER TABLE ONLY postern.bases ALTER COLUMN object_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.bases ALTER COLUMN object_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.bases ALTER COLUMN tie_set SET STORAGE MAIN;
ALTER TABLE ONLY postern.bases ALTER COLUMN tie_set SET COMPRESSION lz4;
ALTER TABLE ONLY postern.bases ALTER COLUMN state_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.bases ALTER COLUMN exact_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.bases ALTER COLUMN state SET STORAGE MAIN;
ALTER TABLE ONLY postern.bases ALTER COLUMN state SET COMPRESSION lz4;

ALTER TABLE postern.bases OWNER TO postern_maintenance;

COMMENT ON TABLE postern.bases IS 'objects as the events of dropped partitions, and they alone, make them';

CREATE TABLE postern.budgets (
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

ALTER TABLE postern.budgets OWNER TO postern_maintenance;

COMMENT ON TABLE postern.budgets IS 'calls that may be made to a provider for an account: one bucket for all processes';

COMMENT ON COLUMN postern.budgets.tokens IS 'calls that could begin at refilled_at';

COMMENT ON COLUMN postern.budgets.blocked_until IS 'nobody calls before: the provider asked for it';

COMMENT ON COLUMN postern.budgets.throttles IS 'how often in a row it did';

COMMENT ON COLUMN postern.budgets.in_flight IS 'calls under way, each with the time at which it counts as dead, in Unix seconds';

COMMENT ON COLUMN postern.budgets.calls IS 'calls by the day on which they began (UTC, counted from 1970-01-01): of the last day with a call and the thirty before it';

CREATE TABLE postern.checkpoints (
    job text NOT NULL,
    run bigint NOT NULL,
    cursor bigint NOT NULL,
    leased_by text NOT NULL,
    leased_until timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    troubles integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.checkpoints OWNER TO postern_maintenance;

COMMENT ON COLUMN postern.checkpoints.troubles IS 'how often in a row a run was put off, without getting on in between';

CREATE TABLE postern.disconnected (
    source integer NOT NULL,
    account text NOT NULL,
    since timestamp with time zone NOT NULL,
    at timestamp with time zone NOT NULL,
    run bigint NOT NULL,
    why text NOT NULL
);

ALTER TABLE postern.disconnected OWNER TO postern_maintenance;

COMMENT ON TABLE postern.disconnected IS 'connected accounts for which the key may not act any more: since when runs have met that, which was the newest and when, and what the API answered; gone once a run finds the account again';

CREATE TABLE postern.drifts (
    run bigint NOT NULL,
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    kind text NOT NULL,
    fields jsonb DEFAULT '[]'::jsonb NOT NULL,
    more integer DEFAULT 0 NOT NULL,
    event_id bigint,
    result text DEFAULT ''::text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    CONSTRAINT drifts_kind_check CHECK ((kind = ANY (ARRAY['missing'::text, 'behind'::text, 'different'::text, 'ghost'::text]))),
    CONSTRAINT drifts_result_check CHECK ((result = ANY (ARRAY[''::text, 'mended'::text, 'left'::text])))
);

ALTER TABLE postern.drifts OWNER TO postern_maintenance;

COMMENT ON TABLE postern.drifts IS 'objects at which the mirror differed from the provider, the first of each run, field by field';

COMMENT ON COLUMN postern.drifts.more IS 'how many fields differ besides';

COMMENT ON COLUMN postern.drifts.event_id IS 'the look that was to mend it';

CREATE TABLE postern.effect_asking (
    one boolean DEFAULT true NOT NULL,
    at timestamp with time zone NOT NULL,
    seconds bigint DEFAULT 0 NOT NULL,
    CONSTRAINT effect_asking_one_check CHECK (one)
)
WITH (fillfactor='50');

ALTER TABLE postern.effect_asking OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_asking IS 'for how long processors have looked for rules on a schedule that are due, whatever rules they had; it stands still while there is none';

COMMENT ON COLUMN postern.effect_asking.at IS 'when seconds was counted last';

CREATE TABLE postern.effect_holds (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    state jsonb,
    deleted boolean NOT NULL,
    there boolean NOT NULL,
    exact_hash bytea NOT NULL,
    held_at timestamp with time zone NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_holds OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_holds IS 'what was certain of objects before they became ambiguous: rules see the change from here to what is certain next';

COMMENT ON COLUMN postern.effect_holds.there IS 'there was such an object';

CREATE TABLE postern.effect_steps (
    effect bigint NOT NULL,
    step text NOT NULL,
    undo boolean DEFAULT false NOT NULL,
    place integer NOT NULL,
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
    doubt text DEFAULT 'key'::text NOT NULL,
    undoable boolean DEFAULT false NOT NULL,
    captures text[] DEFAULT '{}'::text[] NOT NULL,
    known_since timestamp with time zone,
    once boolean DEFAULT false NOT NULL,
    CONSTRAINT effect_steps_doubt_check CHECK ((doubt = ANY (ARRAY['key'::text, 'check'::text, 'person'::text]))),
    CONSTRAINT effect_steps_state_check CHECK ((state = ANY (ARRAY['reserved'::text, 'done'::text, 'failed'::text, 'unknown'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_steps OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_steps IS 'steps of effects that were begun; a row is committed before its call is made';

COMMENT ON COLUMN postern.effect_steps.state IS 'reserved: the call may be under way; unknown: nobody knows whether it did what it was to do';

COMMENT ON COLUMN postern.effect_steps.request IS 'what is sent, the same at each attempt: method, path, headers and body, without the destination''s own headers; null once redacted or forgotten';

COMMENT ON COLUMN postern.effect_steps.fingerprint IS 'SHA-256 of the request';

COMMENT ON COLUMN postern.effect_steps.captured IS 'what the answer said that later steps and people need, by name';

COMMENT ON COLUMN postern.effect_steps.doubt IS 'what clears up a lost answer: the step is sent again under its key, the other side is asked, or a person says what happened';

COMMENT ON COLUMN postern.effect_steps.undoable IS 'its rule said how it is undone when it was sent';

COMMENT ON COLUMN postern.effect_steps.captures IS 'the names under which its rule captures what the answer says, as of when it was sent';

COMMENT ON COLUMN postern.effect_steps.known_since IS 'when the first attempt was reserved that may have been done; null: planned_at of its effect, or reserved_at where there was one attempt';

COMMENT ON COLUMN postern.effect_steps.once IS 'its rule said when it was sent that it is not sent again by itself where the other side does not know of it';

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

COMMENT ON TABLE postern.effect_window_waits IS 'objects that were ambiguous when a window came to them: its rule is asked about them when they are certain';

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
    asked bigint DEFAULT 0 NOT NULL,
    CONSTRAINT effect_windows_check CHECK (((window_start IS NULL) = (window_end IS NULL))),
    CONSTRAINT effect_windows_check1 CHECK ((window_start < window_end))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effect_windows OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effect_windows IS 'how far rules on a schedule are; whoever sees to a window locks its row, and moves it in the transaction that plans effects';

COMMENT ON COLUMN postern.effect_windows.decided_at IS 'all windows that end up to then were seen to, or passed over';

COMMENT ON COLUMN postern.effect_windows.window_end IS 'the window that is being seen to; null: none is';

COMMENT ON COLUMN postern.effect_windows.object_id IS 'with account: objects up to this one were seen to';

COMMENT ON COLUMN postern.effect_windows.asked IS 'effect_asking.seconds when a processor had the rule last';

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
    facts jsonb,
    state text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    undoing boolean DEFAULT false NOT NULL,
    destination text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    due timestamp with time zone,
    taken_by text DEFAULT ''::text NOT NULL,
    taken_until timestamp with time zone,
    planned_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    claims bigint DEFAULT 0 NOT NULL,
    tried_since timestamp with time zone,
    expires_at timestamp with time zone,
    CONSTRAINT effects_check CHECK (((state = ANY (ARRAY['planned'::text, 'failed'::text])) = (due IS NOT NULL))),
    CONSTRAINT effects_check1 CHECK (((state = 'running'::text) = (taken_until IS NOT NULL))),
    CONSTRAINT effects_state_check CHECK ((state = ANY (ARRAY['waiting'::text, 'planned'::text, 'running'::text, 'failed'::text, 'review'::text, 'done'::text, 'rejected'::text, 'expired'::text, 'superseded'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.effects OWNER TO postern_maintenance;

COMMENT ON TABLE postern.effects IS 'ledger of side effects: one for each key and version of its rule';

COMMENT ON COLUMN postern.effects.forced IS 'the run, a replay of mode force, that had it happen again on purpose; 0 for the first';

COMMENT ON COLUMN postern.effects.event_id IS 'the event that made the change; 0 for a schedule';

COMMENT ON COLUMN postern.effects.run IS 'the run that planned it; 0: as the event arrived';

COMMENT ON COLUMN postern.effects.facts IS 'what the templates of its steps see: old and new state, object and event; null once redacted, or forgotten by retention.effects';

COMMENT ON COLUMN postern.effects.undoing IS 'steps that were done are undone, the last first';

COMMENT ON COLUMN postern.effects.destination IS 'where its next step goes';

COMMENT ON COLUMN postern.effects.attempts IS 'of its next step';

COMMENT ON COLUMN postern.effects.claims IS 'how often it was taken; what came of an attempt is recorded only while no later one was begun';

COMMENT ON COLUMN postern.effects.tried_since IS 'the first attempt of its next step since the step before was done or a person had it go on, from when the age of its retries counts; null: there was none yet';

COMMENT ON COLUMN postern.effects.expires_at IS 'until when it can be approved; null: its rule had no approval_expires when it was planned, or nothing had to be approved';

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

COMMENT ON TABLE postern.event_conflicts IS 'the same key with another fingerprint: the first delivery is the event, each differing one is kept whole here';

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

CREATE SEQUENCE postern.event_sequence
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 64;

ALTER TABLE postern.event_sequence OWNER TO postern_maintenance;

CREATE TABLE postern.ghosts (
    run bigint NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    date timestamp with time zone NOT NULL,
    elapsed_us bigint NOT NULL,
    body bytea
);

ALTER TABLE postern.ghosts OWNER TO postern_maintenance;

COMMENT ON TABLE postern.ghosts IS 'objects that the provider has said to be missing, and when; they go when their tombstones are in the log, or after the run';

COMMENT ON COLUMN postern.ghosts.body IS 'what it has answered in their place; null where nothing';

CREATE TABLE postern.hints (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    reason text NOT NULL,
    wanted_by text DEFAULT ''::text NOT NULL,
    made_at timestamp with time zone NOT NULL,
    due timestamp with time zone NOT NULL,
    after bigint NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    error text DEFAULT ''::text NOT NULL,
    taken_by text DEFAULT ''::text NOT NULL,
    taken_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    gaps jsonb
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');

ALTER TABLE postern.hints OWNER TO postern_maintenance;

COMMENT ON TABLE postern.hints IS 'objects that owe a look, each once; a hint goes when its object owes nothing any more';

COMMENT ON COLUMN postern.hints.wanted_by IS 'who asked for the look; empty where the mirror did';

COMMENT ON COLUMN postern.hints.after IS 'the look must begin after this point of the provider''s time, in microseconds';

COMMENT ON COLUMN postern.hints.error IS 'why the last attempt came to nothing';

COMMENT ON COLUMN postern.hints.taken_until IS 'until then the look is taken_by''s to make';

COMMENT ON COLUMN postern.hints.gaps IS 'pairs of hashes of states, from and to: the changes between them were not seen; null where the hint is for nothing of the kind';

CREATE TABLE postern.idempotency_keys (
    scope text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    made_at timestamp with time zone NOT NULL,
    owner text NOT NULL,
    leased_until timestamp with time zone NOT NULL,
    status integer,
    content_type text DEFAULT ''::text NOT NULL,
    body bytea
);
ALTER TABLE ONLY postern.idempotency_keys ALTER COLUMN body SET COMPRESSION lz4;

ALTER TABLE postern.idempotency_keys OWNER TO postern_maintenance;

COMMENT ON TABLE postern.idempotency_keys IS 'requests that were sent with a key, and what they were answered';

COMMENT ON COLUMN postern.idempotency_keys.scope IS 'whose the key is, and for which route';

COMMENT ON COLUMN postern.idempotency_keys.owner IS 'the request that carries it out, as long as its lease holds';

COMMENT ON COLUMN postern.idempotency_keys.status IS 'of the answer; null: there is none yet, or there was nothing to keep';

CREATE TABLE postern.listed (
    run bigint NOT NULL,
    object_type text NOT NULL,
    object bigint NOT NULL,
    remains boolean DEFAULT false NOT NULL,
    odd boolean DEFAULT false NOT NULL
);

ALTER TABLE postern.listed OWNER TO postern_maintenance;

COMMENT ON TABLE postern.listed IS 'digests of the objects that a run has been told of; they go when the type is done, or after the run';

COMMENT ON COLUMN postern.listed.remains IS 'the object differed, and is left';

COMMENT ON COLUMN postern.listed.odd IS 'the object was missing, behind, different or a ghost when it was met first, and counts as that';

CREATE TABLE postern.log_floor (
    one boolean DEFAULT true NOT NULL,
    ms bigint NOT NULL,
    CONSTRAINT log_floor_one_check CHECK (one)
)
WITH (fillfactor='50');

ALTER TABLE postern.log_floor OWNER TO postern_maintenance;

CREATE TABLE postern.notifications (
    name text NOT NULL,
    about text NOT NULL,
    turn bigint DEFAULT 0 NOT NULL,
    since timestamp with time zone,
    told_at timestamp with time zone,
    mark timestamp with time zone NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    taken_until timestamp with time zone,
    trouble text DEFAULT ''::text NOT NULL,
    seed uuid DEFAULT gen_random_uuid() NOT NULL
)
WITH (fillfactor='70');

ALTER TABLE postern.notifications OWNER TO postern_maintenance;

COMMENT ON TABLE postern.notifications IS 'what the configuration''s notify has told: a row for each name, and kind of what it tells';

COMMENT ON COLUMN postern.notifications.turn IS 'counts what was told; what is told again for want of an answer has the same';

COMMENT ON COLUMN postern.notifications.since IS 'when what lasts was first told; null: nothing lasts';

COMMENT ON COLUMN postern.notifications.mark IS 'of runs: what ended up to then was told, or was no failure';

COMMENT ON COLUMN postern.notifications.attempts IS 'that came to nothing since something was told';

COMMENT ON COLUMN postern.notifications.taken_until IS 'a process tells it, or waits after it could not, until then';

COMMENT ON COLUMN postern.notifications.seed IS 'made once, of the ids under which is told, so that another installation has others for the same name';

CREATE TABLE postern.outbox (
    batch bigint NOT NULL,
    sources integer[] NOT NULL,
    accounts text[] NOT NULL,
    types text[] NOT NULL,
    ids text[] NOT NULL,
    made_at timestamp with time zone NOT NULL,
    sent_at timestamp with time zone,
    sequence bigint,
    CONSTRAINT outbox_check CHECK (((sent_at IS NULL) = (sequence IS NULL)))
)
WITH (fillfactor='70');

ALTER TABLE postern.outbox OWNER TO postern_maintenance;

COMMENT ON TABLE postern.outbox IS 'changes to announce: one row per apply transaction; vacuumed by the maintenance loop, since autovacuum comes too late';

ALTER TABLE postern.outbox ALTER COLUMN batch ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.outbox_batch_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.redactions (
    run bigint NOT NULL,
    who text NOT NULL,
    reason text NOT NULL,
    asked jsonb NOT NULL,
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

COMMENT ON TABLE postern.redactions IS 'who had what redacted and why, kept for good; what was looked for is there as a salted digest at most, until the run ends';

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

ALTER TABLE postern.rejections ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME postern.rejections_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postern.retired (
    name text NOT NULL,
    lo bigint NOT NULL,
    hi bigint NOT NULL,
    folded_to bigint NOT NULL,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    export jsonb,
    run bigint NOT NULL,
    ready_at timestamp with time zone,
    dropped_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT retired_check CHECK (((dropped_at IS NULL) OR (ready_at IS NOT NULL)))
)
WITH (fillfactor='50');

ALTER TABLE postern.retired OWNER TO postern_maintenance;

COMMENT ON TABLE postern.retired IS 'partitions of the log that retention is about to drop or has dropped; kept for good, a row a day at most';

COMMENT ON COLUMN postern.retired.lo IS 'the first id that the partition may hold; hi is the first behind it';

COMMENT ON COLUMN postern.retired.folded_to IS 'the bases hold what the events up to this id make; events is how many those are';

COMMENT ON COLUMN postern.retired.ready_at IS 'since then all that must outlive the partition is kept, and it may be detached and dropped';

CREATE TABLE postern.runs (
    run bigint NOT NULL,
    job text NOT NULL,
    asked jsonb NOT NULL,
    who text NOT NULL,
    reason text NOT NULL,
    status text NOT NULL,
    detail text NOT NULL,
    bound bigint,
    expected bigint,
    counts jsonb NOT NULL,
    made_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL,
    approved_by text DEFAULT ''::text NOT NULL,
    approval text DEFAULT ''::text NOT NULL,
    hand bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    schedule text,
    planned_at timestamp with time zone,
    once_key text,
    once_said text,
    told_at timestamp with time zone,
    tell_after timestamp with time zone,
    proposal text DEFAULT ''::text NOT NULL,
    approvals jsonb DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT runs_check CHECK (((ended_at IS NOT NULL) = (status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])))),
    CONSTRAINT runs_status_check CHECK ((status = ANY (ARRAY['proposed'::text, 'waiting'::text, 'running'::text, 'paused'::text, 'done'::text, 'failed'::text, 'cancelled'::text])))
)
WITH (fillfactor='50');

ALTER TABLE postern.runs OWNER TO postern_maintenance;

COMMENT ON COLUMN postern.runs.asked IS 'filter and options, as they were asked for';

COMMENT ON COLUMN postern.runs.bound IS 'the run reads the log up to this id; null until it is frozen';

COMMENT ON COLUMN postern.runs.counts IS 'events by what became of them, as of the checkpoint';

COMMENT ON COLUMN postern.runs.approved_by IS 'who let a proposed run begin; empty for one that needed nobody';

COMMENT ON COLUMN postern.runs.approval IS 'why it was let begin';

COMMENT ON COLUMN postern.runs.hand IS 'events that were chosen and are not counted yet, for a job that would not choose them again';

COMMENT ON COLUMN postern.runs.planned_at IS 'the planned time that the run is of; null where somebody asked';

COMMENT ON COLUMN postern.runs.once_key IS 'the key of whoever asked: what asks with it again gets this run';

COMMENT ON COLUMN postern.runs.once_said IS 'what was asked for under the key, in the words of whoever asked';

COMMENT ON COLUMN postern.runs.told_at IS 'when the end of the run was published; null until then';

COMMENT ON COLUMN postern.runs.proposal IS 'what is to be approved, in the job''s own terms; the detail says it in words';

COMMENT ON COLUMN postern.runs.approvals IS 'what was approved, as it was shown, by whom, why and when';

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
    skipped_why text NOT NULL,
    succeeded_at timestamp with time zone,
    paused_at timestamp with time zone,
    paused_by text NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    CONSTRAINT schedules_missed_check CHECK ((missed = ANY (ARRAY['run'::text, 'skip'::text]))),
    CONSTRAINT schedules_overlap_check CHECK ((overlap = ANY (ARRAY['skip'::text, 'queue'::text])))
)
WITH (fillfactor='50');

ALTER TABLE postern.schedules OWNER TO postern_maintenance;

COMMENT ON COLUMN postern.schedules.planned_at IS 'everything planned up to then was decided: entered as a run, or skipped';

COMMENT ON COLUMN postern.schedules.seen_at IS 'when a process last said that its configuration has this schedule';

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
    place text NOT NULL,
    empty_at timestamp with time zone NOT NULL,
    known_at timestamp with time zone DEFAULT postern.clock_now(),
    told_at timestamp with time zone,
    deliveries bigint,
    bytes bigint,
    oldest_at timestamp with time zone
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000');

ALTER TABLE postern.spools OWNER TO postern_maintenance;

COMMENT ON TABLE postern.spools IS 'spools of gateways that run, or ended without the time to say that nothing is left; postern spool forget takes away the row of one that is gone for good';

COMMENT ON COLUMN postern.spools.place IS 'for a person: machine and folder';

COMMENT ON COLUMN postern.spools.empty_at IS 'all that the gateway had acknowledged by then was in the log';

COMMENT ON COLUMN postern.spools.known_at IS 'since when the row is there; null: since before that was kept';

COMMENT ON COLUMN postern.spools.told_at IS 'when the gateway last told of it, full or empty; null: by a gateway of before that was kept';

COMMENT ON COLUMN postern.spools.deliveries IS 'how many were in it at told_at, and bytes how large they were';

COMMENT ON COLUMN postern.spools.oldest_at IS 'when the oldest of what was in it at told_at was acknowledged, or before; null: nothing was in it, or nobody knows';

CREATE TABLE postern.staged (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    version_final boolean NOT NULL,
    version_at bigint NOT NULL,
    version_seen bigint NOT NULL,
    version_rank smallint NOT NULL,
    tie_set jsonb NOT NULL,
    overflow boolean NOT NULL,
    window_lo bigint NOT NULL,
    window_hi bigint NOT NULL,
    look_after bigint NOT NULL,
    ambiguous boolean NOT NULL,
    deleted boolean NOT NULL,
    state_hash bytea NOT NULL,
    exact_hash bytea NOT NULL,
    state jsonb,
    repaired boolean NOT NULL,
    last_event_id bigint NOT NULL,
    revision bigint NOT NULL,
    rule_version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    settled bigint DEFAULT 0 NOT NULL,
    overwrite_seen bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
ALTER TABLE ONLY postern.staged ALTER COLUMN account SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged ALTER COLUMN object_type SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged ALTER COLUMN object_id SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged ALTER COLUMN tie_set SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged ALTER COLUMN tie_set SET COMPRESSION lz4;
ALTER TABLE ONLY postern.staged ALTER COLUMN state_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.staged ALTER COLUMN exact_hash SET STORAGE PLAIN;
ALTER TABLE ONLY postern.staged ALTER COLUMN state SET STORAGE MAIN;
ALTER TABLE ONLY postern.staged ALTER COLUMN state SET COMPRESSION lz4;

ALTER TABLE postern.staged OWNER TO postern_maintenance;

COMMENT ON TABLE postern.staged IS 'objects made anew from the log by a rebuild that is open, by source; what an ended one left is cleared';

CREATE TABLE postern.sweeps (
    run bigint NOT NULL,
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    phase text DEFAULT 'list'::text NOT NULL,
    cursor text DEFAULT ''::text NOT NULL,
    hand jsonb DEFAULT '[]'::jsonb NOT NULL,
    since timestamp with time zone,
    until timestamp with time zone,
    began timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    restarts integer DEFAULT 0 NOT NULL,
    asked bigint DEFAULT 0 NOT NULL,
    checked bigint DEFAULT 0 NOT NULL,
    missing bigint DEFAULT 0 NOT NULL,
    behind bigint DEFAULT 0 NOT NULL,
    ahead bigint DEFAULT 0 NOT NULL,
    different bigint DEFAULT 0 NOT NULL,
    ghosts bigint DEFAULT 0 NOT NULL,
    mended bigint DEFAULT 0 NOT NULL,
    remaining bigint DEFAULT 0 NOT NULL,
    scope text DEFAULT ''::text NOT NULL,
    passed_over jsonb DEFAULT '[]'::jsonb NOT NULL,
    hidden bigint DEFAULT 0 NOT NULL,
    rereads integer DEFAULT 0 NOT NULL,
    why text DEFAULT ''::text NOT NULL,
    versions_alone boolean DEFAULT false NOT NULL,
    CONSTRAINT sweeps_phase_check CHECK ((phase = ANY (ARRAY['list'::text, 'ghosts'::text, 'graves'::text, 'proposed'::text, 'done'::text, 'rare'::text, 'unlisted'::text])))
)
WITH (fillfactor='50');

ALTER TABLE postern.sweeps OWNER TO postern_maintenance;

COMMENT ON TABLE postern.sweeps IS 'how far a run that goes through all objects of a type is, and what it has met';

COMMENT ON COLUMN postern.sweeps.cursor IS 'where the list, or the walk through the mirror, goes on';

COMMENT ON COLUMN postern.sweeps.hand IS 'objects before the cursor that are not mended yet: id, kind, and whether it was counted';

COMMENT ON COLUMN postern.sweeps.since IS 'what changed from then until until was asked for, on the provider''s clock; null: everything';

COMMENT ON COLUMN postern.sweeps.began IS 'the list tells at least of what happened before, on the provider''s clock';

COMMENT ON COLUMN postern.sweeps.asked IS 'as many tombstones as had to be approved before the first was made; 0: none had to be';

COMMENT ON COLUMN postern.sweeps.scope IS 'digest of the list when the sweep began';

COMMENT ON COLUMN postern.sweeps.passed_over IS 'parts of the list that could not be read: part, why, and whether its beginning was';

COMMENT ON COLUMN postern.sweeps.hidden IS 'of those that were checked, the ones that were not listed, and were found alive by their names';

COMMENT ON COLUMN postern.sweeps.rereads IS 'how often the list was begun again for what was in hand';

COMMENT ON COLUMN postern.sweeps.why IS 'why the type is unlisted: what the API answered; empty where it is not';

COMMENT ON COLUMN postern.sweeps.versions_alone IS 'the whole list told versions that not every change is known to move: what changed under one is not known';

CREATE TABLE postern.tokens (
    name text NOT NULL,
    role text NOT NULL,
    digest bytea NOT NULL,
    made_at timestamp with time zone DEFAULT postern.clock_now() NOT NULL,
    made_by text NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    used_on date,
    CONSTRAINT tokens_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT tokens_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'::text)),
    CONSTRAINT tokens_role_check CHECK ((role = ANY (ARRAY['reader'::text, 'operator'::text])))
);

ALTER TABLE postern.tokens OWNER TO postern_maintenance;

COMMENT ON TABLE postern.tokens IS 'who may ask the admin interface; a name is never given again, so that the audit stays clear';

COMMENT ON COLUMN postern.tokens.digest IS 'SHA-256 of the token';

COMMENT ON COLUMN postern.tokens.used_on IS 'the last day (UTC) on which it was used';

CREATE TABLE postern.tombstones (
    source integer NOT NULL,
    account text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    at timestamp with time zone NOT NULL
);

ALTER TABLE postern.tombstones OWNER TO postern_maintenance;

COMMENT ON TABLE postern.tombstones IS 'objects that were alive here and that a look of their hint has found to be missing, of the last hour';

CREATE TABLE postern.watermarks (
    source integer NOT NULL,
    account text NOT NULL,
    what text NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    run bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    scope text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.watermarks OWNER TO postern_maintenance;

COMMENT ON TABLE postern.watermarks IS 'from when until when, on the provider''s clock, something of an account is proven complete: what the provider has told lies in the log and has its outcome';

COMMENT ON COLUMN postern.watermarks.scope IS 'digest of the list that the type was proven by, or of the lists of events or deliveries; empty where it was proven before there was one';

ALTER TABLE ONLY postern.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.auditor_passes
    ADD CONSTRAINT auditor_passes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.bases
    ADD CONSTRAINT bases_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.budgets
    ADD CONSTRAINT budgets_pkey PRIMARY KEY (source, account);

ALTER TABLE ONLY postern.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (job, run);

ALTER TABLE ONLY postern.disconnected
    ADD CONSTRAINT disconnected_pkey PRIMARY KEY (source, account);

ALTER TABLE ONLY postern.drifts
    ADD CONSTRAINT drifts_pkey PRIMARY KEY (run, object_type, object_id);

ALTER TABLE ONLY postern.effect_asking
    ADD CONSTRAINT effect_asking_pkey PRIMARY KEY (one);

ALTER TABLE ONLY postern.effect_holds
    ADD CONSTRAINT effect_holds_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.effect_steps
    ADD CONSTRAINT effect_steps_pkey PRIMARY KEY (effect, step, undo);

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

ALTER TABLE ONLY postern.ghosts
    ADD CONSTRAINT ghosts_pkey PRIMARY KEY (run, object_type, object_id);

ALTER TABLE ONLY postern.hints
    ADD CONSTRAINT hints_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (scope, key);

ALTER TABLE ONLY postern.listed
    ADD CONSTRAINT listed_pkey PRIMARY KEY (run, object_type, object);

ALTER TABLE ONLY postern.log_floor
    ADD CONSTRAINT log_floor_pkey PRIMARY KEY (one);

ALTER TABLE ONLY postern.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (name, about);

ALTER TABLE ONLY postern.objects
    ADD CONSTRAINT objects_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (batch);

ALTER TABLE ONLY postern.outcomes
    ADD CONSTRAINT outcomes_pkey PRIMARY KEY (event_id, run);

ALTER TABLE ONLY postern.redacted
    ADD CONSTRAINT redacted_pkey PRIMARY KEY (event);

ALTER TABLE ONLY postern.redactions
    ADD CONSTRAINT redactions_pkey PRIMARY KEY (run);

ALTER TABLE ONLY postern.rejections
    ADD CONSTRAINT rejections_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.retired
    ADD CONSTRAINT retired_pkey PRIMARY KEY (name);

ALTER TABLE ONLY postern.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (run);

ALTER TABLE ONLY postern.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);

ALTER TABLE ONLY postern.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.sources
    ADD CONSTRAINT sources_name_key UNIQUE (name);

ALTER TABLE ONLY postern.sources
    ADD CONSTRAINT sources_pkey PRIMARY KEY (number);

ALTER TABLE ONLY postern.spools
    ADD CONSTRAINT spools_pkey PRIMARY KEY (spool);

ALTER TABLE ONLY postern.staged
    ADD CONSTRAINT staged_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.sweeps
    ADD CONSTRAINT sweeps_pkey PRIMARY KEY (run, object_type);

ALTER TABLE ONLY postern.tokens
    ADD CONSTRAINT tokens_digest_key UNIQUE (digest);

ALTER TABLE ONLY postern.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (name);

ALTER TABLE ONLY postern.tombstones
    ADD CONSTRAINT tombstones_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.watermarks
    ADD CONSTRAINT watermarks_pkey PRIMARY KEY (source, account, what);

CREATE INDEX auditor_passes_open ON postern.auditor_passes USING btree (id) WHERE (ended_at IS NULL);

CREATE INDEX drifts_object ON postern.drifts USING btree (source, account, object_type, object_id);

CREATE INDEX effect_steps_doubtful ON postern.effect_steps USING btree (effect) WHERE ((state = 'unknown'::text) OR ((state = 'reserved'::text) AND (known_since < reserved_at)));

CREATE INDEX effects_due ON postern.effects USING btree (destination, due) WHERE (state = ANY (ARRAY['planned'::text, 'failed'::text]));

CREATE INDEX effects_event ON postern.effects USING btree (event_id);

CREATE INDEX effects_expiring ON postern.effects USING btree (expires_at) WHERE ((state = 'waiting'::text) AND (expires_at IS NOT NULL));

CREATE UNIQUE INDEX effects_key ON postern.effects USING btree (key, rule_version, forced);

CREATE INDEX effects_object ON postern.effects USING btree (source, account, object_type, object_id);

CREATE INDEX effects_taken ON postern.effects USING btree (taken_until) WHERE (state = 'running'::text);

CREATE INDEX effects_unsettled ON postern.effects USING btree (state, effect) WHERE (state = ANY (ARRAY['waiting'::text, 'failed'::text, 'review'::text]));

CREATE INDEX effects_waiting ON postern.effects USING btree (rule, planned_at) WHERE ((state = 'waiting'::text) AND (expires_at IS NULL));

CREATE INDEX hints_due_of_source ON postern.hints USING btree (source, due);

CREATE INDEX idempotency_keys_made ON postern.idempotency_keys USING btree (made_at);

CREATE INDEX objects_owing ON postern.objects USING btree (source, account, object_type, object_id) WHERE (look_after <> 0);

CREATE INDEX outbox_unsent ON postern.outbox USING btree (made_at) WHERE (sent_at IS NULL);

CREATE INDEX outcomes_by_object ON postern.outcomes USING btree (object, event_id) WHERE (object <> 0);

CREATE INDEX outcomes_dead ON postern.outcomes USING btree (event_id) WHERE (status = 'dead'::text);

CREATE INDEX outcomes_due ON postern.outcomes USING btree (due) WHERE ((status = 'failed'::text) AND (run = 0));

CREATE INDEX outcomes_of_runs ON postern.outcomes USING btree (run) WHERE (run > 0);

CREATE INDEX outcomes_unfinished ON postern.outcomes USING btree (run, event_id) WHERE (status = ANY (ARRAY['failed'::text, 'dead'::text]));

CREATE INDEX redactions_requested ON postern.redactions USING btree (requested_by) WHERE (requested_by IS NOT NULL);

CREATE INDEX rejections_by_source ON postern.rejections USING btree (source, id);

CREATE INDEX runs_ended ON postern.runs USING btree (ended_at) WHERE (ended_at IS NOT NULL);

CREATE UNIQUE INDEX runs_once ON postern.runs USING btree (once_key) WHERE (once_key IS NOT NULL);

CREATE UNIQUE INDEX runs_one_rebuild ON postern.runs USING btree (((asked ->> 'source'::text))) WHERE ((job = 'rebuild'::text) AND (ended_at IS NULL));

CREATE UNIQUE INDEX runs_one_retention ON postern.runs USING btree (job) WHERE ((job = 'retention'::text) AND (ended_at IS NULL));

CREATE INDEX runs_open ON postern.runs USING btree (run) WHERE (status = ANY (ARRAY['waiting'::text, 'running'::text]));

CREATE UNIQUE INDEX runs_planned ON postern.runs USING btree (schedule, planned_at) WHERE (planned_at IS NOT NULL);

CREATE INDEX runs_scheduled ON postern.runs USING btree (schedule, run) WHERE (schedule IS NOT NULL);

CREATE INDEX runs_scheduled_open ON postern.runs USING btree (schedule) WHERE ((schedule IS NOT NULL) AND (ended_at IS NULL));

CREATE INDEX runs_unended ON postern.runs USING btree (job, status) WHERE (ended_at IS NULL);

CREATE INDEX runs_untold ON postern.runs USING btree (run) WHERE ((ended_at IS NOT NULL) AND (told_at IS NULL));

CREATE INDEX sweeps_done ON postern.sweeps USING btree (source, account, object_type, run) WHERE (phase = 'done'::text);

CREATE INDEX sweeps_unlisted ON postern.sweeps USING btree (source, account, object_type, run) WHERE (phase = 'unlisted'::text);

CREATE TRIGGER audit_append_only BEFORE DELETE OR UPDATE ON postern.audit FOR EACH ROW EXECUTE FUNCTION postern.refuse_audit_change();

CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON postern.audit FOR EACH STATEMENT EXECUTE FUNCTION postern.refuse_audit_change();

CREATE TRIGGER event_conflicts_redacted BEFORE INSERT ON postern.event_conflicts FOR EACH ROW EXECUTE FUNCTION postern.drop_redacted_conflict();

CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON postern.events FOR EACH ROW EXECUTE FUNCTION postern.refuse_change();

CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON postern.events FOR EACH STATEMENT EXECUTE FUNCTION postern.refuse_change();

CREATE TRIGGER runs_forget_finds BEFORE UPDATE ON postern.runs FOR EACH ROW WHEN (((new.job = 'redact'::text) AND (new.ended_at IS NOT NULL))) EXECUTE FUNCTION postern.forget_finds();

ALTER TABLE ONLY postern.disconnected
    ADD CONSTRAINT disconnected_source_fkey FOREIGN KEY (source) REFERENCES postern.sources(number);

ALTER TABLE ONLY postern.drifts
    ADD CONSTRAINT drifts_run_fkey FOREIGN KEY (run) REFERENCES postern.runs(run) ON DELETE CASCADE;

ALTER TABLE ONLY postern.effect_steps
    ADD CONSTRAINT effect_steps_effect_fkey FOREIGN KEY (effect) REFERENCES postern.effects(effect) ON DELETE CASCADE;

ALTER TABLE ONLY postern.ghosts
    ADD CONSTRAINT ghosts_run_fkey FOREIGN KEY (run) REFERENCES postern.runs(run) ON DELETE CASCADE;

ALTER TABLE ONLY postern.sweeps
    ADD CONSTRAINT sweeps_run_fkey FOREIGN KEY (run) REFERENCES postern.runs(run) ON DELETE CASCADE;

ALTER TABLE ONLY postern.watermarks
    ADD CONSTRAINT watermarks_source_fkey FOREIGN KEY (source) REFERENCES postern.sources(number);

GRANT ALL ON SCHEMA mirror TO postern_maintenance;
GRANT USAGE ON SCHEMA mirror TO postern_reader;
GRANT USAGE ON SCHEMA mirror TO postern_operator;

GRANT ALL ON SCHEMA postern TO postern_maintenance;
GRANT USAGE ON SCHEMA postern TO postern_gateway;
GRANT USAGE ON SCHEMA postern TO postern_processor;
GRANT USAGE ON SCHEMA postern TO postern_operator;

REVOKE ALL ON FUNCTION postern.end_redaction(p_run bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.end_redaction(p_run bigint) TO postern_processor;

REVOKE ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) TO postern_gateway;
GRANT ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) TO postern_processor;

REVOKE ALL ON FUNCTION postern.forget_finds() FROM PUBLIC;

REVOKE ALL ON FUNCTION postern.raise_floor() FROM PUBLIC;
GRANT ALL ON FUNCTION postern.raise_floor() TO postern_processor;
GRANT ALL ON FUNCTION postern.raise_floor() TO postern_operator;

REVOKE ALL ON FUNCTION postern.redact_conflicts(p_run bigint, p_conflicts bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.redact_conflicts(p_run bigint, p_conflicts bigint[]) TO postern_processor;

REVOKE ALL ON FUNCTION postern.redact_copies(p_run bigint, p_table text, p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_read timestamp with time zone[]) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.redact_copies(p_run bigint, p_table text, p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_read timestamp with time zone[]) TO postern_processor;

REVOKE ALL ON FUNCTION postern.redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[], OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.redact_events(p_run bigint, p_events bigint[], p_locks bigint[], p_sources integer[], p_accounts text[], p_types text[], p_ids text[], p_rejections bigint[], OUT cleared_events bigint, OUT cleared_objects bigint, OUT cleared_conflicts bigint, OUT cleared_rejections bigint) TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.events TO postern_gateway;
GRANT SELECT ON TABLE postern.events TO postern_processor;
GRANT SELECT ON TABLE postern.events TO postern_operator;

GRANT SELECT ON TABLE postern.redacted TO postern_operator;
GRANT SELECT ON TABLE postern.redacted TO postern_processor;
GRANT SELECT ON TABLE postern.redacted TO postern_gateway;

GRANT SELECT,INSERT ON TABLE postern.sources TO postern_gateway;
GRANT SELECT,INSERT ON TABLE postern.sources TO postern_processor;
GRANT SELECT ON TABLE postern.sources TO postern_operator;

GRANT UPDATE(api_reads) ON TABLE postern.sources TO postern_processor;

GRANT SELECT ON TABLE mirror.events TO postern_reader;
GRANT SELECT ON TABLE mirror.events TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.objects TO postern_processor;
GRANT SELECT ON TABLE postern.objects TO postern_operator;

GRANT SELECT ON TABLE mirror.objects TO postern_reader;
GRANT SELECT ON TABLE mirror.objects TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.outcomes TO postern_processor;
GRANT SELECT ON TABLE postern.outcomes TO postern_operator;

GRANT SELECT ON TABLE mirror.outcomes TO postern_reader;
GRANT SELECT ON TABLE mirror.outcomes TO postern_operator;

GRANT SELECT ON TABLE postern.audit TO postern_operator;

GRANT INSERT(who) ON TABLE postern.audit TO postern_operator;
GRANT INSERT(who) ON TABLE postern.audit TO postern_gateway;

GRANT INSERT(via) ON TABLE postern.audit TO postern_operator;
GRANT INSERT(via) ON TABLE postern.audit TO postern_gateway;

GRANT INSERT(address) ON TABLE postern.audit TO postern_operator;
GRANT INSERT(address) ON TABLE postern.audit TO postern_gateway;

GRANT INSERT(action) ON TABLE postern.audit TO postern_operator;
GRANT INSERT(action) ON TABLE postern.audit TO postern_gateway;

GRANT INSERT(target) ON TABLE postern.audit TO postern_operator;
GRANT INSERT(target) ON TABLE postern.audit TO postern_gateway;

GRANT INSERT(reason) ON TABLE postern.audit TO postern_operator;
GRANT INSERT(reason) ON TABLE postern.audit TO postern_gateway;

GRANT INSERT(run) ON TABLE postern.audit TO postern_operator;
GRANT INSERT(run) ON TABLE postern.audit TO postern_gateway;

GRANT SELECT,UPDATE ON TABLE postern.auditor_passes TO postern_processor;
GRANT SELECT,INSERT ON TABLE postern.auditor_passes TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.bases TO postern_processor;
GRANT SELECT ON TABLE postern.bases TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.budgets TO postern_processor;
GRANT SELECT ON TABLE postern.budgets TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.checkpoints TO postern_processor;
GRANT SELECT ON TABLE postern.checkpoints TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.disconnected TO postern_processor;
GRANT SELECT ON TABLE postern.disconnected TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.drifts TO postern_processor;
GRANT SELECT ON TABLE postern.drifts TO postern_operator;

GRANT SELECT,UPDATE ON TABLE postern.effect_asking TO postern_processor;
GRANT SELECT ON TABLE postern.effect_asking TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.effect_holds TO postern_processor;
GRANT SELECT ON TABLE postern.effect_holds TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.effect_steps TO postern_processor;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.effect_steps TO postern_operator;

GRANT SELECT,INSERT,DELETE ON TABLE postern.effect_window_waits TO postern_processor;
GRANT SELECT ON TABLE postern.effect_window_waits TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.effect_windows TO postern_processor;
GRANT SELECT ON TABLE postern.effect_windows TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.effects TO postern_processor;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.effects TO postern_operator;

GRANT SELECT,INSERT ON TABLE postern.event_conflicts TO postern_gateway;
GRANT SELECT ON TABLE postern.event_conflicts TO postern_operator;

GRANT SELECT(id) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(source) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(account) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(headers) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT(body) ON TABLE postern.event_conflicts TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.event_keys TO postern_gateway;
GRANT SELECT ON TABLE postern.event_keys TO postern_processor;
GRANT SELECT ON TABLE postern.event_keys TO postern_operator;

GRANT USAGE ON SEQUENCE postern.event_sequence TO postern_gateway;

GRANT SELECT,INSERT,DELETE ON TABLE postern.ghosts TO postern_processor;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.hints TO postern_processor;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.hints TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.idempotency_keys TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.listed TO postern_processor;

GRANT SELECT,UPDATE ON TABLE postern.log_floor TO postern_gateway;
GRANT SELECT,UPDATE ON TABLE postern.log_floor TO postern_processor;
GRANT SELECT ON TABLE postern.log_floor TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.notifications TO postern_processor;
GRANT SELECT ON TABLE postern.notifications TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.outbox TO postern_processor;
GRANT SELECT,INSERT ON TABLE postern.outbox TO postern_operator;

GRANT SELECT ON TABLE postern.redactions TO postern_operator;
GRANT SELECT ON TABLE postern.redactions TO postern_processor;

GRANT SELECT,INSERT,DELETE ON TABLE postern.rejections TO postern_gateway;
GRANT SELECT ON TABLE postern.rejections TO postern_operator;

GRANT SELECT(id) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(source) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(detail) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(headers) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT(body) ON TABLE postern.rejections TO postern_processor;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.retired TO postern_processor;
GRANT SELECT ON TABLE postern.retired TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.runs TO postern_processor;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.runs TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.schedules TO postern_processor;
GRANT SELECT,UPDATE ON TABLE postern.schedules TO postern_operator;

GRANT SELECT ON TABLE postern.schema_migrations TO postern_operator;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_gateway;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_processor;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_maintenance;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.spools TO postern_gateway;
GRANT SELECT ON TABLE postern.spools TO postern_processor;
GRANT SELECT,DELETE ON TABLE postern.spools TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.staged TO postern_processor;
GRANT SELECT ON TABLE postern.staged TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.sweeps TO postern_processor;
GRANT SELECT ON TABLE postern.sweeps TO postern_operator;

GRANT SELECT,INSERT ON TABLE postern.tokens TO postern_operator;

GRANT UPDATE(revoked_at) ON TABLE postern.tokens TO postern_operator;

GRANT UPDATE(used_on) ON TABLE postern.tokens TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.tombstones TO postern_processor;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.watermarks TO postern_processor;
GRANT SELECT ON TABLE postern.watermarks TO postern_operator;
