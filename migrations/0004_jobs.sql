-- Jobs: runs with their checkpoints and leases, and schedules.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE runs (
  run                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job                 text NOT NULL,
  params              jsonb NOT NULL,
  actor               text NOT NULL,
  reason              text NOT NULL,
  status              text NOT NULL,
  detail              text NOT NULL,
  bound               bigint,
  expected            bigint,
  counts              jsonb NOT NULL,
  created_at          timestamptz NOT NULL,
  started_at          timestamptz,
  ended_at            timestamptz,
  updated_at          timestamptz NOT NULL,
  approved_by         text NOT NULL DEFAULT '',
  approval_reason     text NOT NULL DEFAULT '',
  in_progress         bigint[] NOT NULL DEFAULT '{}',
  schedule            text,
  planned_at          timestamptz,
  idempotency_key     text,
  idempotency_request text,
  published_at        timestamptz,
  publish_after       timestamptz,
  proposal            text NOT NULL DEFAULT '',
  approvals           jsonb NOT NULL DEFAULT '[]',
  CHECK ((ended_at IS NOT NULL) = (status IN ('done', 'failed', 'cancelled'))),
  CHECK (status IN ('awaiting_approval', 'queued', 'running', 'paused', 'done', 'failed', 'cancelled'))
)
WITH (fillfactor = 50);
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX runs_idempotency_key ON runs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX runs_one_rebuild ON runs (((params ->> 'source'))) WHERE job = 'rebuild' AND ended_at IS NULL;
CREATE UNIQUE INDEX runs_one_retention ON runs (job) WHERE job = 'retention' AND ended_at IS NULL;
CREATE INDEX runs_open ON runs (run) WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX runs_planned ON runs (schedule, planned_at) WHERE planned_at IS NOT NULL;
CREATE INDEX runs_scheduled ON runs (schedule, run) WHERE schedule IS NOT NULL;
CREATE INDEX runs_open_by_job ON runs (job, status) WHERE ended_at IS NULL;
CREATE INDEX runs_unpublished ON runs (run) WHERE ended_at IS NOT NULL AND published_at IS NULL;
COMMENT ON TABLE runs IS 'Ledger of jobs: one row per run, from request to end.';
COMMENT ON COLUMN runs.run IS 'Number of the run. 0 is never used: it means live.';
COMMENT ON COLUMN runs.job IS 'replay, rebuild, reconcile, retention, redact, retry and so on.';
COMMENT ON COLUMN runs.params IS 'Filter and options of the request.';
COMMENT ON COLUMN runs.actor IS 'Operator, token or schedule that requested the run.';
COMMENT ON COLUMN runs.reason IS 'Reason that the operator gave.';
COMMENT ON COLUMN runs.status IS 'awaiting_approval, queued, running, paused, done, failed or cancelled.';
COMMENT ON COLUMN runs.detail IS 'Progress or result in words.';
COMMENT ON COLUMN runs.bound IS 'The run reads the log up to this event id. Null until it is frozen.';
COMMENT ON COLUMN runs.expected IS 'Number of events that the run expects to read.';
COMMENT ON COLUMN runs.counts IS 'Number of events by result, as of the last checkpoint.';
COMMENT ON COLUMN runs.created_at IS 'Time of the request.';
COMMENT ON COLUMN runs.started_at IS 'Time at which a processor first started it.';
COMMENT ON COLUMN runs.ended_at IS 'Time of the end. Null while it is open.';
COMMENT ON COLUMN runs.updated_at IS 'Time of the last change of this row.';
COMMENT ON COLUMN runs.approved_by IS 'Operator who approved the run. Empty where no approval was needed.';
COMMENT ON COLUMN runs.approval_reason IS 'Reason that this operator gave.';
COMMENT ON COLUMN runs.in_progress IS
  'Events that were selected and are not counted yet, for jobs that would not select them again.';
COMMENT ON COLUMN runs.schedule IS 'Name of the schedule that requested the run.';
COMMENT ON COLUMN runs.planned_at IS 'Planned time of a scheduled run. Null for a manual request.';
COMMENT ON COLUMN runs.idempotency_key IS
  'Key of the requester. A second request with the same key returns this run.';
COMMENT ON COLUMN runs.idempotency_request IS 'The request under this key, to notice a different one.';
COMMENT ON COLUMN runs.published_at IS 'Time at which the end of the run was published. Null before.';
COMMENT ON COLUMN runs.publish_after IS 'The end is not published before this time.';
COMMENT ON COLUMN runs.proposal IS 'Machine-readable form of what needs approval. The detail says it in words.';
COMMENT ON COLUMN runs.approvals IS 'Each approval: what was displayed, by whom it was approved, why and when.';

CREATE TABLE checkpoints (
  job         text NOT NULL,
  run         bigint NOT NULL,
  cursor      bigint NOT NULL,
  lease_owner text NOT NULL,
  lease_until timestamptz NOT NULL,
  updated_at  timestamptz NOT NULL,
  deferrals   int NOT NULL DEFAULT 0,
  PRIMARY KEY (job, run)
)
WITH (fillfactor = 50);
COMMENT ON TABLE checkpoints IS 'Durable cursors and leases of jobs and of background tasks.';
COMMENT ON COLUMN checkpoints.job IS 'Name of the job or task.';
COMMENT ON COLUMN checkpoints.run IS 'The run, 0 for a background task.';
COMMENT ON COLUMN checkpoints.cursor IS 'Work up to this position is committed.';
COMMENT ON COLUMN checkpoints.lease_owner IS 'Process that works on it now. Empty where none does.';
COMMENT ON COLUMN checkpoints.lease_until IS 'End of that process''s lease.';
COMMENT ON COLUMN checkpoints.updated_at IS 'Time of the last change of this row.';
COMMENT ON COLUMN checkpoints.deferrals IS 'How often in a row the run was deferred without progress.';

CREATE TABLE schedules (
  name           text PRIMARY KEY,
  job            text NOT NULL,
  cron           text NOT NULL,
  time_zone      text NOT NULL,
  overlap        text NOT NULL,
  missed         text NOT NULL,
  parameters     jsonb NOT NULL,
  planned_at     timestamptz NOT NULL,
  skipped        bigint NOT NULL,
  skipped_at     timestamptz,
  skipped_reason text NOT NULL,
  succeeded_at   timestamptz,
  paused_at      timestamptz,
  paused_by      text NOT NULL,
  configured_at  timestamptz NOT NULL,
  CHECK (missed IN ('run', 'skip')),
  CHECK (overlap IN ('skip', 'queue'))
)
WITH (fillfactor = 50);
COMMENT ON TABLE schedules IS 'Schedules of the configuration, with what was decided for them.';
COMMENT ON COLUMN schedules.name IS 'Name of the schedule.';
COMMENT ON COLUMN schedules.job IS 'Job that it requests.';
COMMENT ON COLUMN schedules.cron IS 'Cron expression.';
COMMENT ON COLUMN schedules.time_zone IS 'Time zone of the expression.';
COMMENT ON COLUMN schedules.overlap IS 'What happens while the last run is open: skip or queue.';
COMMENT ON COLUMN schedules.missed IS
  'What happens with planned times that passed while no processor was running: run or skip.';
COMMENT ON COLUMN schedules.parameters IS 'Parameters of the job.';
COMMENT ON COLUMN schedules.planned_at IS
  'Every planned time up to this one was decided: requested as a run, or skipped.';
COMMENT ON COLUMN schedules.skipped IS 'Number of skipped times.';
COMMENT ON COLUMN schedules.skipped_at IS 'The last skipped time.';
COMMENT ON COLUMN schedules.skipped_reason IS 'Reason of the last skip.';
COMMENT ON COLUMN schedules.succeeded_at IS 'Time at which a run of the schedule last succeeded.';
COMMENT ON COLUMN schedules.paused_at IS 'Time at which an operator paused the schedule. Null while it is active.';
COMMENT ON COLUMN schedules.paused_by IS 'Operator who paused it.';
COMMENT ON COLUMN schedules.configured_at IS
  'Time at which a process last reported that its configuration has the schedule.';
