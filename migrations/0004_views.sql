-- The mirror for SQL: schema mirror, documented and stable views, and the read-only role postern_reader.
-- Locks: new objects only.
-- +goose Up
CREATE SCHEMA mirror;

-- +goose StatementBegin
CREATE FUNCTION version_json(final boolean, at bigint, seen bigint, rank smallint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN at > -9223372036854775808 THEN jsonb_build_object('final', final, 'at', at, 'seen', seen, 'rank', rank) END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION provider_time(us bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  -- Up to the year 9999: what a hostile body claims beyond must not make the view unreadable.
  SELECT CASE WHEN us BETWEEN 1 AND 253402300799999999 THEN timestamptz 'epoch' + us * interval '1 microsecond' END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
-- The body as jsonb, or null where it is not what jsonb can hold.
CREATE FUNCTION body_json(body bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN convert_from(body, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
  RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE VIEW mirror.objects AS
  SELECT s.name AS source, o.account, o.object_type, o.object_id, o.state, o.deleted, o.ambiguous, o.repaired,
         postern.provider_time(o.look_after) AS look_after,
         postern.version_json(o.version_final, o.version_at, o.version_seen, o.version_rank) AS version,
         o.revision, o.last_event_id, o.rule_version, o.created_at, o.updated_at
  FROM postern.objects o JOIN postern.sources s ON s.number = o.source;

CREATE VIEW mirror.events AS
  SELECT e.id, s.name AS source, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.occurred_at, e.received_at,
         e.origin, e.api_version, e.headers, e.verification, e.delivery_id, e.delivery_index, e.body,
         postern.body_json(e.body) AS body_json
  FROM postern.events e JOIN postern.sources s ON s.number = e.source;

CREATE VIEW mirror.outcomes AS
  SELECT c.event_id, c.run, s.name AS source, c.account, c.object_type, c.object_id, c.status, c.reason, c.version, c.decided_by,
         c.attempts, c.due, c.at, c.rule_version
  FROM postern.outcomes c JOIN postern.sources s ON s.number = c.source;

COMMENT ON VIEW mirror.objects IS 'the mirror: one row per object; contract kept across versions';
COMMENT ON VIEW mirror.events IS 'the log: body holds the exact bytes, body_json the same as jsonb where jsonb can hold it';
COMMENT ON VIEW mirror.outcomes IS 'what became of each event; run 0 is live';
