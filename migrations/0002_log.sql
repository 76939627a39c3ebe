-- The log: sources, keys, events with their partitions, conflicts, rejections, and the floor that ids are made above.
-- Locks: new tables only.
-- +goose Up
-- +goose StatementBegin
-- The one clock of the database. Tests replace this function to step it back.
CREATE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT floor(extract(epoch FROM postern.clock_now()) * 1000)::bigint';
-- +goose StatementEnd
-- +goose StatementBegin
-- The time an event id carries: Unix milliseconds in the high bits, 20 bits of sequence below.
CREATE FUNCTION event_time(id bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS 'SELECT to_timestamp((id >> 20) / 1000.0)';
-- +goose StatementEnd

CREATE TABLE sources (
  number   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name     text NOT NULL UNIQUE,
  provider text NOT NULL,
  added_at timestamptz NOT NULL DEFAULT clock_now()
);

-- Ids are never made at or below this many milliseconds; readers that freeze a bound raise it.
CREATE TABLE log_floor (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  ms  bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO log_floor (ms) VALUES (0);

CREATE SEQUENCE event_sequence AS bigint CACHE 64;

CREATE TABLE event_keys (
  source      int NOT NULL,
  key         bytea NOT NULL,
  id          bigint NOT NULL,
  fingerprint bytea NOT NULL,
  PRIMARY KEY (source, key)
);

CREATE TABLE events (
  id             bigint NOT NULL,
  source         int NOT NULL,
  event_id       text NOT NULL,
  event_type     text NOT NULL,
  account        text NOT NULL,
  object_type    text NOT NULL,
  object_id      text NOT NULL,
  occurred_at    timestamptz,
  received_at    timestamptz NOT NULL,
  origin         text NOT NULL CHECK (origin IN ('webhook', 'reconcile', 'hint', 'import')),
  api_version    text NOT NULL,
  headers        jsonb NOT NULL,
  verification   jsonb NOT NULL,
  fingerprint    bytea NOT NULL,
  delivery_id    bigint NOT NULL,
  delivery_index int NOT NULL,
  body           bytea COMPRESSION lz4,
  PRIMARY KEY (id)
) PARTITION BY RANGE (id);
COMMENT ON COLUMN events.body IS 'exact bytes of the delivery; null where another event of the same delivery (delivery_id) holds them';

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the event log is append-only: % on % is refused', lower(TG_OP), TG_TABLE_NAME
    USING ERRCODE = 'insufficient_privilege', HINT = 'retention drops whole partitions; nothing else changes a stored event';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- +goose StatementBegin
-- Makes the daily partitions that cover [from_ms, to_ms] (Unix milliseconds) where they are missing; returns how many it made.
-- LIKE and ATTACH lock the parent far less than CREATE TABLE ... PARTITION OF does, so appends go on meanwhile.
CREATE FUNCTION ensure_partitions(from_ms bigint, to_ms bigint) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
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
-- +goose StatementEnd

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
COMMENT ON TABLE event_conflicts IS 'the same key with another fingerprint: the first delivery is the event, each differing one is kept whole here';

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
