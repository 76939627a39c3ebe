-- Keeps how far retention is with each partition of the log, and what it has dropped; ages of what outlives the events are kept over the maintenance role.
-- One retention at a time: two would fold and detach the same partitions.
-- Locks: new table; SHARE on runs while its small index is made: asking for runs waits as long.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE TABLE retired (
  name       text PRIMARY KEY,
  lo         bigint NOT NULL,
  hi         bigint NOT NULL,
  folded_to  bigint NOT NULL,
  events     bigint NOT NULL,
  bytes      bigint NOT NULL,
  export     jsonb,
  run        bigint NOT NULL,
  ready_at   timestamptz,
  dropped_at timestamptz,
  updated_at timestamptz NOT NULL,
  CHECK (dropped_at IS NULL OR ready_at IS NOT NULL)
) WITH (fillfactor = 50);
COMMENT ON TABLE retired IS 'partitions of the log that retention is about to drop or has dropped; kept for good, a row a day at most';
COMMENT ON COLUMN retired.lo IS 'the first id that the partition may hold; hi is the first behind it';
COMMENT ON COLUMN retired.folded_to IS 'the bases hold what the events up to this id make; events is how many those are';
COMMENT ON COLUMN retired.ready_at IS 'since then all that must outlive the partition is kept, and it may be detached and dropped';
CREATE UNIQUE INDEX runs_one_retention ON runs (job) WHERE job = 'retention' AND ended_at IS NULL;
ALTER TABLE retired OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE ON retired TO postern_processor;
GRANT SELECT ON retired TO postern_operator;
GRANT INSERT ON runs TO postern_processor;
