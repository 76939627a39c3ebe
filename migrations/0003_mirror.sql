-- The mirror: objects, the ledger of outcomes, the outbox of changes, and checkpoints.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE objects (
  source        int NOT NULL,
  account       text NOT NULL,
  object_type   text NOT NULL,
  object_id     text NOT NULL,
  version_final boolean NOT NULL,
  version_at    bigint NOT NULL,
  version_seen  bigint NOT NULL,
  version_rank  smallint NOT NULL,
  tie_set       jsonb NOT NULL,
  overflow      boolean NOT NULL,
  window_lo     bigint NOT NULL,
  window_hi     bigint NOT NULL,
  look_after    bigint NOT NULL,
  ambiguous     boolean NOT NULL,
  deleted       boolean NOT NULL,
  state_hash    bytea NOT NULL,
  exact_hash    bytea NOT NULL,
  state         jsonb COMPRESSION lz4,
  repaired      boolean NOT NULL,
  last_event_id bigint NOT NULL,
  revision      bigint NOT NULL,
  rule_version  int NOT NULL,
  created_at    timestamptz NOT NULL,
  updated_at    timestamptz NOT NULL,
  PRIMARY KEY (source, account, object_type, object_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE objects IS 'one row per object; version_*, window_* and look_after are provider time in microseconds; version_at = -2^63 means no version yet';

CREATE TABLE outcomes (
  event_id     bigint NOT NULL,
  run          bigint NOT NULL,
  source       int NOT NULL,
  object       bigint NOT NULL,
  account      text NOT NULL,
  object_type  text NOT NULL,
  object_id    text NOT NULL,
  status       text NOT NULL CHECK (status IN ('applied', 'unchanged', 'stale', 'ambiguous', 'ignored', 'failed', 'dead')),
  reason       text NOT NULL,
  version      jsonb,
  decided_by   jsonb,
  attempts     int NOT NULL,
  due          timestamptz,
  at           timestamptz NOT NULL,
  rule_version int NOT NULL,
  PRIMARY KEY (event_id, run),
  CHECK ((status = 'failed') = (due IS NOT NULL))
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
COMMENT ON COLUMN outcomes.object IS 'hash of (source, account, object_type, object_id), 0 where the event concerns no object';
CREATE INDEX outcomes_by_object ON outcomes (object, event_id) WHERE object <> 0;
CREATE INDEX outcomes_due ON outcomes (due) WHERE status = 'failed';
CREATE INDEX outcomes_dead ON outcomes (event_id) WHERE status = 'dead';

CREATE TABLE outbox (
  batch       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  sources     int[] NOT NULL,
  accounts    text[] NOT NULL,
  types       text[] NOT NULL,
  ids         text[] NOT NULL,
  made_at     timestamptz NOT NULL,
  sent_at     timestamptz,
  sequence    bigint,
  CHECK ((sent_at IS NULL) = (sequence IS NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE outbox IS 'changes to announce: one row per apply transaction; vacuumed by the maintenance loop, since autovacuum comes too late';
CREATE INDEX outbox_unsent ON outbox (made_at) WHERE sent_at IS NULL;

CREATE TABLE checkpoints (
  job          text NOT NULL,
  run          bigint NOT NULL,
  cursor       bigint NOT NULL,
  leased_by    text NOT NULL,
  leased_until timestamptz NOT NULL,
  updated_at   timestamptz NOT NULL,
  PRIMARY KEY (job, run)
) WITH (fillfactor = 50);
