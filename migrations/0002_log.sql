-- The log: sources, event keys, events with their partitions, redacted events, conflicts,
-- rejections, dropped partitions and spools.
-- Locks: new tables only.
-- +goose Up
-- +goose StatementBegin
-- The only clock of the database. Tests replace this function to move it.
CREATE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE
  AS 'SELECT floor(extract(epoch FROM postern.clock_now()) * 1000)::bigint';
-- +goose StatementEnd

-- +goose StatementBegin
-- The time that an event id contains.
CREATE FUNCTION event_time(id bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE
  AS 'SELECT to_timestamp((id >> 20) / 1000.0)';
-- +goose StatementEnd

CREATE TABLE sources (
  number    int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name      text UNIQUE NOT NULL,
  provider  text NOT NULL,
  added_at  timestamptz NOT NULL DEFAULT clock_now(),
  api_reads text[]
);
COMMENT ON TABLE sources IS 'Configured sources by name. A renamed source is a new source.';
COMMENT ON COLUMN sources.number IS 'Number that other tables store instead of the name.';
COMMENT ON COLUMN sources.name IS 'Name of the source in the configuration.';
COMMENT ON COLUMN sources.provider IS 'Provider that the source was configured with when it was registered.';
COMMENT ON COLUMN sources.added_at IS 'Time at which the source was registered.';
COMMENT ON COLUMN sources.api_reads IS
  'What a processor can read from the provider''s API: object, objects, events. Empty without a section api, null '
  'before a processor has reported.';

CREATE TABLE log_floor (
  singleton boolean PRIMARY KEY DEFAULT true,
  ms        bigint NOT NULL,
  CHECK (singleton)
)
WITH (fillfactor = 50);
COMMENT ON TABLE log_floor IS 'One row: the time below which no new event id is made. Readers of the log raise it.';
COMMENT ON COLUMN log_floor.singleton IS 'Always true, so that the table has one row.';
COMMENT ON COLUMN log_floor.ms IS 'New event ids carry a later time than this, in Unix milliseconds.';
INSERT INTO log_floor (ms) VALUES (0);

CREATE SEQUENCE event_sequence AS bigint CACHE 64;
COMMENT ON SEQUENCE event_sequence IS
  'Low 20 bits of the ids of events.';

CREATE TABLE event_keys (
  source      int NOT NULL,
  key         bytea NOT NULL,
  id          bigint NOT NULL,
  fingerprint bytea NOT NULL,
  PRIMARY KEY (source, key)
)
WITH (autovacuum_analyze_threshold = 20000);
COMMENT ON TABLE event_keys IS
  'One row per stored event key. The primary key makes an event unique, also after its partition was dropped.';
COMMENT ON COLUMN event_keys.source IS 'Number of the source.';
COMMENT ON COLUMN event_keys.key IS 'First 16 bytes of the SHA-256 of the event''s key.';
COMMENT ON COLUMN event_keys.id IS 'Id of the event that has the key.';
COMMENT ON COLUMN event_keys.fingerprint IS 'Fingerprint of that event''s content.';

CREATE TABLE events (
  id             bigint PRIMARY KEY,
  source         int NOT NULL,
  event_id       text NOT NULL,
  event_type     text NOT NULL,
  account        text NOT NULL,
  object_type    text NOT NULL,
  object_id      text NOT NULL,
  occurred_at    timestamptz,
  received_at    timestamptz NOT NULL,
  origin         text NOT NULL,
  api_version    text NOT NULL,
  headers        jsonb NOT NULL,
  verification   jsonb NOT NULL,
  fingerprint    bytea NOT NULL,
  delivery_id    bigint NOT NULL,
  delivery_index int NOT NULL,
  body           bytea COMPRESSION lz4,
  CHECK (origin IN ('webhook', 'reconcile', 'import'))
) PARTITION BY RANGE (id);
ALTER TABLE events
  ALTER event_id SET STORAGE MAIN,
  ALTER event_type SET STORAGE MAIN,
  ALTER account SET STORAGE MAIN,
  ALTER object_type SET STORAGE MAIN,
  ALTER object_id SET STORAGE MAIN,
  ALTER origin SET STORAGE PLAIN,
  ALTER api_version SET STORAGE MAIN,
  ALTER headers SET STORAGE MAIN,
  ALTER verification SET STORAGE MAIN,
  ALTER fingerprint SET STORAGE PLAIN,
  ALTER body SET STORAGE MAIN;
COMMENT ON TABLE events IS 'The append-only log: one row per event. Triggers reject every change except redaction.';
COMMENT ON COLUMN events.id IS
  'Event id: Unix milliseconds of the append shifted left by 20 bits, plus a sequence number.';
COMMENT ON COLUMN events.source IS 'Number of the source that received the event.';
COMMENT ON COLUMN events.event_id IS
  'The provider''s id of the event, or a content key of the delivery where it has none.';
COMMENT ON COLUMN events.event_type IS 'The provider''s type of the event.';
COMMENT ON COLUMN events.account IS
  'Tenant inside the source, such as a connected account or a shop. Empty where there is none.';
COMMENT ON COLUMN events.object_type IS 'Type of the object that the event is about. Empty where it is about none.';
COMMENT ON COLUMN events.object_id IS 'The provider''s id of the object. Empty where the event is about none.';
COMMENT ON COLUMN events.occurred_at IS
  'Time of the event according to the provider, null where the delivery does not tell it.';
COMMENT ON COLUMN events.received_at IS 'Time at which the gateway received the delivery.';
COMMENT ON COLUMN events.origin IS 'How the event got here: webhook, reconcile or import.';
COMMENT ON COLUMN events.api_version IS 'Version of the provider''s API that the event was made with.';
COMMENT ON COLUMN events.headers IS 'Headers of the delivery that the provider''s allow-list keeps.';
COMMENT ON COLUMN events.verification IS
  'Result of verifying the delivery: scheme, matched secret and time of signature.';
COMMENT ON COLUMN events.fingerprint IS
  'First 16 bytes of the SHA-256 of the content. Another content under the same key is a conflict.';
COMMENT ON COLUMN events.delivery_id IS 'Id of the first event of the same delivery. That event holds the body.';
COMMENT ON COLUMN events.delivery_index IS 'Position of the event inside its delivery, from 0.';
COMMENT ON COLUMN events.body IS
  'Exact bytes of the delivery. Null where another event of the same delivery (delivery_id) holds them, or after '
  'redaction.';

CREATE TABLE redacted_events (
  event bigint PRIMARY KEY,
  run   bigint NOT NULL,
  at    timestamptz NOT NULL
);
COMMENT ON TABLE redacted_events IS
  'Events whose body and headers were cleared, also those whose partition was dropped since.';
COMMENT ON COLUMN redacted_events.event IS 'Id of the event.';
COMMENT ON COLUMN redacted_events.run IS 'Redaction run that cleared it.';
COMMENT ON COLUMN redacted_events.at IS 'Time of the redaction.';

CREATE TABLE event_conflicts (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source       int NOT NULL,
  event        bigint NOT NULL,
  event_id     text NOT NULL,
  event_type   text NOT NULL,
  account      text NOT NULL,
  fingerprint  bytea NOT NULL,
  received_at  timestamptz NOT NULL,
  headers      jsonb NOT NULL,
  verification jsonb NOT NULL,
  body         bytea COMPRESSION lz4 NOT NULL,
  UNIQUE (event, fingerprint)
);
COMMENT ON TABLE event_conflicts IS
  'Deliveries whose key belongs to an event with another fingerprint. The event keeps the first content; each other '
  'content is kept here.';
COMMENT ON COLUMN event_conflicts.id IS 'Number of the conflict.';
COMMENT ON COLUMN event_conflicts.source IS 'Number of the source.';
COMMENT ON COLUMN event_conflicts.event IS 'Id of the stored event that has the same key.';
COMMENT ON COLUMN event_conflicts.event_id IS 'The provider''s id of the event.';
COMMENT ON COLUMN event_conflicts.event_type IS 'The provider''s type of the event.';
COMMENT ON COLUMN event_conflicts.account IS 'Tenant inside the source.';
COMMENT ON COLUMN event_conflicts.fingerprint IS 'Fingerprint of the conflicting content.';
COMMENT ON COLUMN event_conflicts.received_at IS 'Time at which the gateway received the delivery.';
COMMENT ON COLUMN event_conflicts.headers IS 'Headers of the delivery that the allow-list keeps.';
COMMENT ON COLUMN event_conflicts.verification IS 'Result of verifying the delivery.';
COMMENT ON COLUMN event_conflicts.body IS 'Exact bytes of the delivery.';

CREATE TABLE rejections (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source      int NOT NULL,
  reason      text NOT NULL,
  detail      text NOT NULL,
  remote      text NOT NULL,
  received_at timestamptz NOT NULL,
  headers     jsonb NOT NULL,
  body        bytea COMPRESSION lz4 NOT NULL,
  bytes       bigint NOT NULL
);
CREATE INDEX rejections_by_source ON rejections (source, id);
COMMENT ON TABLE rejections IS
  'Deliveries that the gateway rejected, bounded in number and bytes, so that they can be verified again.';
COMMENT ON COLUMN rejections.id IS 'Number of the rejection.';
COMMENT ON COLUMN rejections.source IS 'Number of the source.';
COMMENT ON COLUMN rejections.reason IS 'Machine-readable reason of the rejection.';
COMMENT ON COLUMN rejections.detail IS 'Reason in words, for the operator.';
COMMENT ON COLUMN rejections.remote IS 'Address that sent the delivery.';
COMMENT ON COLUMN rejections.received_at IS 'Time at which the gateway received the delivery.';
COMMENT ON COLUMN rejections.headers IS 'Headers of the delivery.';
COMMENT ON COLUMN rejections.body IS 'Exact bytes of the delivery.';
COMMENT ON COLUMN rejections.bytes IS 'Size that counts towards the limit.';

CREATE TABLE dropped_partitions (
  name        text PRIMARY KEY,
  id_from     bigint NOT NULL,
  id_to       bigint NOT NULL,
  retained_to bigint NOT NULL,
  events      bigint NOT NULL,
  bytes       bigint NOT NULL,
  export      jsonb,
  run         bigint NOT NULL,
  ready_at    timestamptz,
  dropped_at  timestamptz,
  updated_at  timestamptz NOT NULL,
  CHECK ((dropped_at IS NULL) OR (ready_at IS NOT NULL))
)
WITH (fillfactor = 50);
COMMENT ON TABLE dropped_partitions IS
  'Partitions of the log that retention is about to drop or has dropped. Rows are kept for ever, at most one a day.';
COMMENT ON COLUMN dropped_partitions.name IS 'Name of the partition''s table.';
COMMENT ON COLUMN dropped_partitions.id_from IS 'First event id that the partition may hold.';
COMMENT ON COLUMN dropped_partitions.id_to IS 'First event id behind the partition.';
COMMENT ON COLUMN dropped_partitions.retained_to IS
  'Retained objects include the effect of all events up to this id.';
COMMENT ON COLUMN dropped_partitions.events IS 'Number of events that retained objects include so far.';
COMMENT ON COLUMN dropped_partitions.bytes IS 'Size of the partition in bytes.';
COMMENT ON COLUMN dropped_partitions.export IS
  'The export that holds the partition''s events, null where none was required.';
COMMENT ON COLUMN dropped_partitions.run IS 'Retention run that handles the partition.';
COMMENT ON COLUMN dropped_partitions.ready_at IS
  'Since this time everything that must outlive the partition is kept, so that it may be dropped.';
COMMENT ON COLUMN dropped_partitions.dropped_at IS 'Time of the drop, null before it.';
COMMENT ON COLUMN dropped_partitions.updated_at IS 'Time of the last change of this row.';

CREATE TABLE spools (
  spool         text PRIMARY KEY,
  location      text NOT NULL,
  drained_at    timestamptz NOT NULL,
  registered_at timestamptz DEFAULT clock_now(),
  reported_at   timestamptz,
  deliveries    bigint,
  bytes         bigint,
  oldest_at     timestamptz
)
WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE spools IS 'Spools of running gateways, and of gateways that ended without reporting an empty spool.';
COMMENT ON COLUMN spools.spool IS 'Id of the spool.';
COMMENT ON COLUMN spools.location IS 'Machine and folder of the spool, for people.';
COMMENT ON COLUMN spools.drained_at IS 'Every delivery that the gateway acknowledged before this time is in the log.';
COMMENT ON COLUMN spools.registered_at IS 'Time at which the row was inserted.';
COMMENT ON COLUMN spools.reported_at IS 'Time of the gateway''s last report about the spool.';
COMMENT ON COLUMN spools.deliveries IS 'Number of deliveries in the spool at reported_at.';
COMMENT ON COLUMN spools.bytes IS 'Size of the deliveries in the spool at reported_at.';
COMMENT ON COLUMN spools.oldest_at IS
  'No delivery that was in the spool at reported_at was acknowledged before this time. Null where the spool was '
  'empty or the time is unknown.';

-- +goose StatementBegin
CREATE FUNCTION reject_change() RETURNS trigger LANGUAGE plpgsql AS $$
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
-- +goose StatementEnd

-- +goose StatementBegin
-- A conflict of a redacted event contains the same data, so it is not stored. The lock makes the
-- insert wait for a redaction of the event that is in progress.
CREATE FUNCTION drop_redacted_conflict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(NEW.event);
  IF EXISTS (SELECT FROM postern.redacted_events r WHERE r.event = NEW.event) THEN
    RETURN NULL;
  END IF;
  RETURN NEW;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Creates the missing partitions of the days from from_ms to to_ms (Unix milliseconds) and returns
-- their number.
CREATE FUNCTION ensure_partitions(from_ms bigint, to_ms bigint) RETURNS int LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = postern, pg_temp AS $$
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
-- +goose StatementEnd

-- +goose StatementBegin
-- Raises the floor to the current time and returns it: every event id that is made later is above
-- it.
CREATE FUNCTION raise_floor() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
  UPDATE postern.log_floor SET ms = greatest(ms, postern.clock_ms(), (SELECT max(e.id) >> 20 FROM postern.events e))
  RETURNING ms
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The body as jsonb. Null where jsonb cannot hold it, or only with numbers of more than 300 digits.
CREATE FUNCTION body_json(body bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
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
-- +goose StatementEnd

CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION reject_change();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER event_conflicts_redacted BEFORE INSERT ON event_conflicts
  FOR EACH ROW EXECUTE FUNCTION drop_redacted_conflict();
