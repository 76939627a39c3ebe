-- Shows in the mirror what was redacted, and lets a redaction look for mentions in headers.
-- Locks: ACCESS EXCLUSIVE on the views mirror.objects and mirror.events, for a moment; no table is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE OR REPLACE VIEW mirror.objects AS
  SELECT s.name AS source, o.account, o.object_type, o.object_id, o.state, o.deleted, o.ambiguous, o.repaired,
         postern.provider_time(o.look_after) AS look_after,
         postern.version_json(o.version_final, o.version_at, o.version_seen, o.version_rank) AS version,
         o.revision, o.last_event_id, o.rule_version, o.created_at, o.updated_at,
         o.tie_set = '[]' AND o.version_at > -9223372036854775808 AS redacted
  FROM postern.objects o JOIN postern.sources s ON s.number = o.source;
COMMENT ON COLUMN mirror.objects.redacted IS 'the state was cleared for good; a newer event or refetch makes it false again';
CREATE OR REPLACE VIEW mirror.events AS
  SELECT e.id, s.name AS source, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.occurred_at, e.received_at,
         e.origin, e.api_version, e.headers, e.verification, e.delivery_id, e.delivery_index, e.body,
         postern.body_json(e.body) AS body_json,
         e.body IS NOT NULL AND postern.body_json(e.body) IS NULL AS body_json_omitted,
         EXISTS (SELECT FROM postern.redacted r WHERE r.event = e.id) AS redacted
  FROM postern.events e JOIN postern.sources s ON s.number = e.source;
COMMENT ON COLUMN mirror.events.redacted IS 'body and headers were cleared for good';
GRANT SELECT (headers, detail) ON rejections TO postern_processor;
GRANT SELECT (headers) ON event_conflicts TO postern_processor;
