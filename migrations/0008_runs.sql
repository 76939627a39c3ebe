-- Keeps the ledger of runs: who had a job done over the log, why, and what came of it. How far it is lies in checkpoints, and what became of each
-- event in outcomes, under the run's number; 0 is live and has no row here.
-- Failures of a run are not tried again by themselves, so the index of what is due, which the auditor reads every few seconds, leaves them out.
-- Locks: ACCESS EXCLUSIVE on outcomes while its index is made again, which reads the table once: applying waits as long. It fails after 5 s of waiting for the
-- lock and can be run again.
-- +goose Up
SET LOCAL lock_timeout = '5s';
DROP INDEX outcomes_due;
CREATE INDEX outcomes_due ON outcomes (due) WHERE status = 'failed' AND run = 0;
CREATE TABLE runs (
  run        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job        text NOT NULL,
  asked      jsonb NOT NULL,
  who        text NOT NULL,
  reason     text NOT NULL,
  status     text NOT NULL CHECK (status IN ('waiting', 'running', 'paused', 'done', 'failed', 'cancelled')),
  detail     text NOT NULL,
  bound      bigint,
  expected   bigint,
  counts     jsonb NOT NULL,
  made_at    timestamptz NOT NULL,
  started_at timestamptz,
  ended_at   timestamptz,
  updated_at timestamptz NOT NULL,
  CHECK ((ended_at IS NOT NULL) = (status IN ('done', 'failed', 'cancelled')))
) WITH (fillfactor = 50);
CREATE INDEX runs_open ON runs (run) WHERE status IN ('waiting', 'running');
COMMENT ON COLUMN runs.asked IS 'filter and options, as they were asked for';
COMMENT ON COLUMN runs.bound IS 'the run reads the log up to this id; null until it is frozen';
COMMENT ON COLUMN runs.counts IS 'events by what became of them, as of the checkpoint';
ALTER TABLE runs OWNER TO postern_maintenance;
GRANT SELECT, UPDATE ON runs TO postern_processor;
GRANT SELECT, INSERT, UPDATE ON runs TO postern_operator;
