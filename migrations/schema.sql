CREATE SCHEMA mirror;

ALTER SCHEMA mirror OWNER TO postgres;

CREATE SCHEMA postern;

ALTER SCHEMA postern OWNER TO postgres;

CREATE FUNCTION postern.body_json(body bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
  RETURN convert_from(body, 'UTF8')::jsonb;
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

CREATE FUNCTION postern.provider_time(us bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$
  -- Up to the year 9999: what a hostile body claims beyond must not make the view unreadable.
  SELECT CASE WHEN us BETWEEN 1 AND 253402300799999999 THEN timestamptz 'epoch' + us * interval '1 microsecond' END
$$;

ALTER FUNCTION postern.provider_time(us bigint) OWNER TO postern_maintenance;

CREATE FUNCTION postern.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION 'the event log is append-only: % on % is refused', lower(TG_OP), TG_TABLE_NAME
    USING ERRCODE = 'insufficient_privilege', HINT = 'retention drops whole partitions; nothing else changes a stored event';
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

CREATE TABLE postern.sources (
    number integer NOT NULL,
    name text NOT NULL,
    provider text NOT NULL,
    added_at timestamp with time zone DEFAULT postern.clock_now() NOT NULL
);

ALTER TABLE postern.sources OWNER TO postern_maintenance;

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
    postern.body_json(e.body) AS body_json
   FROM (postern.events e
     JOIN postern.sources s ON ((s.number = e.source)));

ALTER TABLE mirror.events OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.events IS 'the log: body holds the exact bytes, body_json the same as jsonb where jsonb can hold it';

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
    updated_at timestamp with time zone NOT NULL
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
    o.updated_at
   FROM (postern.objects o
     JOIN postern.sources s ON ((s.number = o.source)));

ALTER TABLE mirror.objects OWNER TO postern_maintenance;

COMMENT ON VIEW mirror.objects IS 'the mirror: one row per object; contract kept across versions';

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
    updated_at timestamp with time zone NOT NULL
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

CREATE TABLE postern.checkpoints (
    job text NOT NULL,
    run bigint NOT NULL,
    cursor bigint NOT NULL,
    leased_by text NOT NULL,
    leased_until timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE postern.checkpoints OWNER TO postern_maintenance;

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

CREATE TABLE postern.log_floor (
    one boolean DEFAULT true NOT NULL,
    ms bigint NOT NULL,
    CONSTRAINT log_floor_one_check CHECK (one)
)
WITH (fillfactor='50');

ALTER TABLE postern.log_floor OWNER TO postern_maintenance;

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
    updated_at timestamp with time zone NOT NULL
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

ALTER TABLE ONLY postern.bases
    ADD CONSTRAINT bases_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (job, run);

ALTER TABLE ONLY postern.event_conflicts
    ADD CONSTRAINT event_conflicts_event_fingerprint_key UNIQUE (event, fingerprint);

ALTER TABLE ONLY postern.event_conflicts
    ADD CONSTRAINT event_conflicts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.event_keys
    ADD CONSTRAINT event_keys_pkey PRIMARY KEY (source, key);

ALTER TABLE ONLY postern.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postern.log_floor
    ADD CONSTRAINT log_floor_pkey PRIMARY KEY (one);

ALTER TABLE ONLY postern.objects
    ADD CONSTRAINT objects_pkey PRIMARY KEY (source, account, object_type, object_id);

ALTER TABLE ONLY postern.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (batch);

ALTER TABLE ONLY postern.outcomes
    ADD CONSTRAINT outcomes_pkey PRIMARY KEY (event_id, run);

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

ALTER TABLE ONLY postern.staged
    ADD CONSTRAINT staged_pkey PRIMARY KEY (source, account, object_type, object_id);

CREATE INDEX outbox_unsent ON postern.outbox USING btree (made_at) WHERE (sent_at IS NULL);

CREATE INDEX outcomes_by_object ON postern.outcomes USING btree (object, event_id) WHERE (object <> 0);

CREATE INDEX outcomes_dead ON postern.outcomes USING btree (event_id) WHERE (status = 'dead'::text);

CREATE INDEX outcomes_due ON postern.outcomes USING btree (due) WHERE ((status = 'failed'::text) AND (run = 0));

CREATE INDEX outcomes_of_runs ON postern.outcomes USING btree (run) WHERE (run > 0);

CREATE INDEX outcomes_unfinished ON postern.outcomes USING btree (run, event_id) WHERE (status = ANY (ARRAY['failed'::text, 'dead'::text]));

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

CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON postern.events FOR EACH ROW EXECUTE FUNCTION postern.refuse_change();

CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON postern.events FOR EACH STATEMENT EXECUTE FUNCTION postern.refuse_change();

GRANT ALL ON SCHEMA mirror TO postern_maintenance;
GRANT USAGE ON SCHEMA mirror TO postern_reader;
GRANT USAGE ON SCHEMA mirror TO postern_operator;

GRANT ALL ON SCHEMA postern TO postern_maintenance;
GRANT USAGE ON SCHEMA postern TO postern_gateway;
GRANT USAGE ON SCHEMA postern TO postern_processor;
GRANT USAGE ON SCHEMA postern TO postern_operator;

REVOKE ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) TO postern_gateway;
GRANT ALL ON FUNCTION postern.ensure_partitions(from_ms bigint, to_ms bigint) TO postern_processor;

GRANT SELECT,INSERT ON TABLE postern.events TO postern_gateway;
GRANT SELECT ON TABLE postern.events TO postern_processor;
GRANT SELECT ON TABLE postern.events TO postern_operator;

GRANT SELECT,INSERT ON TABLE postern.sources TO postern_gateway;
GRANT SELECT,INSERT ON TABLE postern.sources TO postern_processor;
GRANT SELECT ON TABLE postern.sources TO postern_operator;

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

GRANT SELECT,INSERT,UPDATE ON TABLE postern.bases TO postern_processor;
GRANT SELECT ON TABLE postern.bases TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.checkpoints TO postern_processor;
GRANT SELECT ON TABLE postern.checkpoints TO postern_operator;

GRANT SELECT,INSERT ON TABLE postern.event_conflicts TO postern_gateway;
GRANT SELECT ON TABLE postern.event_conflicts TO postern_operator;

GRANT SELECT,INSERT ON TABLE postern.event_keys TO postern_gateway;
GRANT SELECT ON TABLE postern.event_keys TO postern_processor;
GRANT SELECT ON TABLE postern.event_keys TO postern_operator;

GRANT USAGE ON SEQUENCE postern.event_sequence TO postern_gateway;

GRANT SELECT,UPDATE ON TABLE postern.log_floor TO postern_gateway;
GRANT SELECT,UPDATE ON TABLE postern.log_floor TO postern_processor;
GRANT SELECT ON TABLE postern.log_floor TO postern_operator;

GRANT UPDATE(ms) ON TABLE postern.log_floor TO postern_operator;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.outbox TO postern_processor;
GRANT SELECT,INSERT ON TABLE postern.outbox TO postern_operator;

GRANT SELECT,INSERT,DELETE ON TABLE postern.rejections TO postern_gateway;
GRANT SELECT ON TABLE postern.rejections TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.retired TO postern_processor;
GRANT SELECT ON TABLE postern.retired TO postern_operator;
GRANT SELECT ON TABLE postern.retired TO postern_gateway;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.runs TO postern_processor;
GRANT SELECT,INSERT,UPDATE ON TABLE postern.runs TO postern_operator;

GRANT SELECT,INSERT,UPDATE ON TABLE postern.schedules TO postern_processor;
GRANT SELECT,UPDATE ON TABLE postern.schedules TO postern_operator;

GRANT SELECT ON TABLE postern.schema_migrations TO postern_operator;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_gateway;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_processor;
GRANT SELECT ON TABLE postern.schema_migrations TO postern_maintenance;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE postern.staged TO postern_processor;
GRANT SELECT ON TABLE postern.staged TO postern_operator;
