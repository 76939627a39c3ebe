-- Views for readers, the owner of everything (postern_maintenance), and the rights of each role.
-- The daemons own nothing and have only the rights that they use.
-- Locks: ACCESS EXCLUSIVE on the new tables, briefly.
-- +goose Up
CREATE SCHEMA mirror;

CREATE VIEW mirror.events AS
  SELECT e.id, s.name AS source, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.occurred_at,
    e.received_at, e.origin, e.api_version, e.headers, e.verification, e.delivery_id, e.delivery_index, e.body,
    postern.body_json(e.body) AS body_json,
    e.body IS NOT NULL AND postern.body_json(e.body) IS NULL AS body_json_omitted,
    EXISTS (SELECT FROM postern.redacted_events r WHERE r.event = e.id) AS redacted
  FROM postern.events e JOIN postern.sources s ON s.number = e.source;
COMMENT ON VIEW mirror.events IS
  'The log. Column body holds the exact bytes, body_json the same as jsonb where jsonb can hold it.';
COMMENT ON COLUMN mirror.events.source IS 'Name of the source.';
COMMENT ON COLUMN mirror.events.body_json IS
  'The body as jsonb. Null where jsonb cannot hold it, or only with numbers of more than 300 digits.';
COMMENT ON COLUMN mirror.events.body_json_omitted IS 'The event has a body and body_json is null: read body.';
COMMENT ON COLUMN mirror.events.redacted IS 'Body and headers were cleared permanently.';

CREATE VIEW mirror.objects AS
  SELECT s.name AS source, o.account, o.object_type, o.object_id, o.state,
    o.deleted OR o.version_at = -9223372036854775808 AND o.refetch_after = 0 AS deleted, o.ambiguous, o.sanitized,
    postern.provider_time(o.refetch_after) AS refetch_after,
    postern.version_json(o.version_final, o.version_at, o.version_seen, o.version_rank) AS version,
    o.revision, o.last_event_id, o.rule_version, o.created_at, o.updated_at,
    o.tied_states = '[]' AND o.version_at > -9223372036854775808 AS redacted, c.number AS last_change
  FROM postern.objects o JOIN postern.sources s ON s.number = o.source
  LEFT JOIN postern.changes c ON c.source = o.source AND c.account = o.account AND c.object_type = o.object_type
    AND c.object_id = o.object_id;
COMMENT ON VIEW mirror.objects IS 'The mirror: one row per object. The columns stay the same across releases.';
COMMENT ON COLUMN mirror.objects.source IS 'Name of the source.';
COMMENT ON COLUMN mirror.objects.deleted IS 'The object is deleted, or no stored event makes it any more.';
COMMENT ON COLUMN mirror.objects.refetch_after IS
  'Earliest time, on the provider''s clock, of the refetch that the object needs. Null where it needs none.';
COMMENT ON COLUMN mirror.objects.version IS
  'Version of the state: final (permanent delete), at (event time), seen (start of the refetch), rank (order '
  'within one time).';
COMMENT ON COLUMN mirror.objects.redacted IS
  'The state was cleared permanently. A newer event or refetch makes this false again.';
COMMENT ON COLUMN mirror.objects.last_change IS
  'Number of the last change, as in mirror.changes. Null for some milliseconds after the first change.';

CREATE VIEW mirror.changes AS
  -- LIMIT keeps the order of the join: first the next changes, then their objects.
  SELECT c.number, s.name AS source, c.account, c.object_type, c.object_id, o.revision,
    o.deleted OR o.version_at = -9223372036854775808 AS deleted,
    o.state IS NULL AND o.version_at > -9223372036854775808 AND o.tied_states = '[]' AS redacted,
    c.changed_at
  FROM postern.changes c JOIN postern.sources s ON s.number = c.source
  CROSS JOIN LATERAL (SELECT o.revision, o.deleted, o.version_at, o.state, o.tied_states FROM postern.objects o
    WHERE o.source = c.source AND o.account = c.account AND o.object_type = c.object_type
      AND o.object_id = c.object_id LIMIT 1) o;
COMMENT ON VIEW mirror.changes IS
  'The last change of each object, with the object as it is now. Read it in the order of number, and continue after '
  'the last one.';
COMMENT ON COLUMN mirror.changes.source IS 'Name of the source.';
COMMENT ON COLUMN mirror.changes.revision IS 'Revision of the object as it is now. It grows with each change.';
COMMENT ON COLUMN mirror.changes.deleted IS 'The object is deleted, or no stored event makes it any more.';
COMMENT ON COLUMN mirror.changes.redacted IS
  'The state was cleared permanently. A newer event or refetch makes this false again.';

CREATE VIEW mirror.change_feed AS
  SELECT f.epochs[cardinality(f.epochs)] AS epoch, f.newest, (
    SELECT jsonb_object_agg(f.epochs[i], least(f.newest, (SELECT min(s) FROM unnest(f.epoch_starts[i + 1:]) AS s)))
    FROM generate_subscripts(f.epochs, 1) AS i) AS valid_up_to
  FROM postern.change_feed f;
COMMENT ON VIEW mirror.change_feed IS
  'The newest number of mirror.changes, and the epoch of the numbers.';
COMMENT ON COLUMN mirror.change_feed.valid_up_to IS
  'For each epoch, the greatest number from which a reader may continue. A reader with a greater number, or of an '
  'epoch that is not here, starts again at 0.';
COMMENT ON COLUMN mirror.change_feed.epoch IS 'Name of the epoch. A restore from a backup begins a new one.';

CREATE VIEW mirror.outcomes AS
  SELECT c.event_id, c.run, s.name AS source, c.account, c.object_type, c.object_id, c.status, c.reason, c.version,
    c.decided_by, c.attempts, c.due, c.at, c.rule_version
  FROM postern.outcomes c JOIN postern.sources s ON s.number = c.source;
COMMENT ON VIEW mirror.outcomes IS 'The outcome of each event. Run 0 is live.';
COMMENT ON COLUMN mirror.outcomes.source IS 'Name of the source.';

-- The new owner of a view must be able to create in its schema, unless a superuser assigns it.
GRANT USAGE, CREATE ON SCHEMA mirror TO postern_maintenance;

-- +goose StatementBegin
DO $$
DECLARE
  thing record;
BEGIN
  FOR thing IN
    SELECT c.oid::regclass AS name, c.relkind FROM pg_class c
    WHERE c.relnamespace IN ('postern'::regnamespace, 'mirror'::regnamespace) AND c.relkind IN ('r', 'p', 'v', 'S')
      AND c.relname NOT LIKE 'schema_migrations%'
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.classid = 'pg_class'::regclass
        AND d.deptype IN ('i', 'a') AND c.relkind = 'S')
  LOOP
    EXECUTE format('ALTER %s %s OWNER TO postern_maintenance',
      CASE thing.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, thing.name);
  END LOOP;
  FOR thing IN
    SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'postern'::regnamespace
  LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO postern_maintenance', thing.name);
  END LOOP;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION ensure_partitions(bigint, bigint), raise_floor(), delete_search_digests(),
  redact_events(bigint, bigint[], bigint[], int[], text[], text[], text[], bigint[]),
  redact_conflicts(bigint, bigint[]), end_redaction(bigint),
  redact_copies(bigint, text, bigint[], int[], text[], text[], text[], timestamptz[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ensure_partitions(bigint, bigint) TO postern_gateway, postern_processor;
GRANT EXECUTE ON FUNCTION raise_floor() TO postern_processor, postern_operator;
GRANT EXECUTE ON FUNCTION redact_events(bigint, bigint[], bigint[], int[], text[], text[], text[], bigint[]),
  redact_conflicts(bigint, bigint[]), end_redaction(bigint),
  redact_copies(bigint, text, bigint[], int[], text[], text[], text[], timestamptz[]) TO postern_processor;
GRANT USAGE ON SCHEMA mirror TO postern_reader, postern_operator;

GRANT SELECT, INSERT ON event_conflicts, event_keys, events TO postern_gateway;
GRANT SELECT, INSERT, DELETE ON rejections TO postern_gateway;
GRANT SELECT, INSERT, UPDATE, DELETE ON spools TO postern_gateway;
GRANT USAGE ON SEQUENCE event_sequence TO postern_gateway;
GRANT INSERT (actor, via, address, action, target, reason, run) ON audit TO postern_gateway, postern_operator;
GRANT SELECT ON redacted_events TO postern_gateway, postern_operator, postern_processor;
GRANT SELECT, INSERT ON sources TO postern_gateway, postern_processor;
GRANT SELECT, UPDATE ON log_floor TO postern_gateway, postern_processor;
GRANT SELECT ON
  audit, checkpoints, disconnected_accounts, drifts, dropped_partitions, effect_baselines,
  effect_schedule_clock, effect_window_waits, effect_windows, event_conflicts, log_floor, notifications,
  object_scans, objects, outcomes, rate_budgets, rejections, retained_objects, sources, staged_objects,
  watermarks
  TO postern_operator;
GRANT SELECT, DELETE ON spools TO postern_operator;
GRANT SELECT, INSERT ON outbox, republish_passes, tokens TO postern_operator;
GRANT SELECT, INSERT, UPDATE ON effect_steps, effects TO postern_operator;
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys TO postern_operator;
GRANT SELECT, UPDATE ON schedules TO postern_operator;
GRANT UPDATE (revoked_at, used_on) ON tokens TO postern_operator;
GRANT SELECT ON event_keys, events, redactions TO postern_operator, postern_processor;
GRANT SELECT, INSERT, UPDATE ON runs TO postern_operator, postern_processor;
GRANT SELECT, INSERT, UPDATE, DELETE ON refetch_requests TO postern_operator, postern_processor;
GRANT SELECT ON mirror.change_feed, mirror.changes, mirror.events, mirror.objects, mirror.outcomes
  TO postern_operator, postern_reader;
GRANT SELECT ON spools TO postern_processor;
GRANT SELECT (id, source, account, headers, body) ON event_conflicts TO postern_processor;
GRANT SELECT (id, source, detail, headers, body) ON rejections TO postern_processor;
GRANT SELECT, INSERT, DELETE ON effect_window_changes, effect_window_waits, orphans TO postern_processor;
GRANT SELECT, UPDATE ON change_feed TO postern_operator, postern_processor;
GRANT SELECT ON changes TO postern_operator;
GRANT SELECT, INSERT, UPDATE ON
  changes, checkpoints, dropped_partitions, effect_windows, notifications, objects, outcomes, rate_budgets,
  retained_objects, schedules
  TO postern_processor;
GRANT SELECT, INSERT, UPDATE, DELETE ON
  disconnected_accounts, drifts, effect_baselines, effect_steps, effects, listed_objects, object_scans, outbox,
  recent_missing, staged_objects, watermarks
  TO postern_processor;
GRANT SELECT, UPDATE ON effect_schedule_clock, republish_passes TO postern_processor;
GRANT UPDATE (api_reads) ON sources TO postern_processor;
-- A daemon compares the schema with the migrations it was built with before it starts.
GRANT SELECT ON schema_migrations TO postern_gateway, postern_processor, postern_operator, postern_maintenance;
