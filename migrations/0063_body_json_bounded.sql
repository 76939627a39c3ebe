-- Bounds the size of mirror.events.body_json: a number such as 1e100000 takes six bytes in a body and 100,000 as text.
-- A body with a number beyond what objects.state takes (an exponent beyond 300 either way) has no body_json, and the new
-- column body_json_omitted says so.
-- Locks: ACCESS EXCLUSIVE on the view mirror.events, for a moment; no table is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION body_json(body bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
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
-- +goose StatementEnd
CREATE OR REPLACE VIEW mirror.events AS
  SELECT e.id, s.name AS source, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.occurred_at, e.received_at,
         e.origin, e.api_version, e.headers, e.verification, e.delivery_id, e.delivery_index, e.body,
         postern.body_json(e.body) AS body_json,
         e.body IS NOT NULL AND postern.body_json(e.body) IS NULL AS body_json_omitted
  FROM postern.events e JOIN postern.sources s ON s.number = e.source;
COMMENT ON COLUMN mirror.events.body_json IS 'the body as jsonb; null where jsonb cannot hold it, or only with numbers of more than 300 digits';
COMMENT ON COLUMN mirror.events.body_json_omitted IS 'the event has a body, and body_json is null: read body';
