-- Reconciliation: refetch requests, rate budgets, object scans, drifts and watermarks.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE refetch_requests (
  source         int NOT NULL,
  account        text NOT NULL,
  object_type    text NOT NULL,
  object_id      text NOT NULL,
  reason         text NOT NULL,
  requested_by   text NOT NULL DEFAULT '',
  requested_at   timestamptz NOT NULL,
  due            timestamptz NOT NULL,
  start_after    bigint NOT NULL,
  attempts       int NOT NULL DEFAULT 0,
  error          text NOT NULL DEFAULT '',
  lease_owner    text NOT NULL DEFAULT '',
  lease_until    timestamptz NOT NULL DEFAULT '-infinity',
  missed_changes jsonb,
  PRIMARY KEY (source, account, object_type, object_id)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX refetch_requests_due ON refetch_requests (source, due);
COMMENT ON TABLE refetch_requests IS
  'Queue of objects to read again from the provider''s API, one row per object. A row is deleted when its object '
  'has no refetch pending.';
COMMENT ON COLUMN refetch_requests.source IS 'Number of the source.';
COMMENT ON COLUMN refetch_requests.account IS 'Tenant inside the source.';
COMMENT ON COLUMN refetch_requests.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN refetch_requests.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN refetch_requests.reason IS 'Reason of the refetch in words.';
COMMENT ON COLUMN refetch_requests.requested_by IS
  'Operator who requested the refetch. Empty for an automatic request.';
COMMENT ON COLUMN refetch_requests.requested_at IS 'Time of the latest request.';
COMMENT ON COLUMN refetch_requests.due IS 'Time of the next attempt. Infinity while the request is suspended.';
COMMENT ON COLUMN refetch_requests.start_after IS
  'The refetch must start after this time on the provider''s clock, in microseconds.';
COMMENT ON COLUMN refetch_requests.attempts IS 'Number of failed attempts so far.';
COMMENT ON COLUMN refetch_requests.error IS 'Error of the last attempt.';
COMMENT ON COLUMN refetch_requests.lease_owner IS 'Process that makes the refetch now. Empty where none does.';
COMMENT ON COLUMN refetch_requests.lease_until IS 'End of that process''s lease.';
COMMENT ON COLUMN refetch_requests.missed_changes IS
  'Pairs of state hashes, from and to: changes between these states were not received. Null where the request has '
  'another reason.';

CREATE TABLE recent_missing (
  source      int NOT NULL,
  account     text NOT NULL,
  object_type text NOT NULL,
  object_id   text NOT NULL,
  at          timestamptz NOT NULL,
  PRIMARY KEY (source, account, object_type, object_id)
);
COMMENT ON TABLE recent_missing IS
  'Objects that were alive in the mirror and that a refetch did not find, of the last hour.';
COMMENT ON COLUMN recent_missing.source IS 'Number of the source.';
COMMENT ON COLUMN recent_missing.account IS 'Tenant inside the source.';
COMMENT ON COLUMN recent_missing.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN recent_missing.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN recent_missing.at IS 'Time of the refetch.';

CREATE TABLE rate_budgets (
  source        int NOT NULL,
  account       text NOT NULL,
  tokens        double precision NOT NULL,
  refilled_at   timestamptz NOT NULL,
  blocked_until timestamptz NOT NULL,
  throttles     int NOT NULL,
  in_flight     jsonb NOT NULL,
  calls         jsonb NOT NULL DEFAULT '{}',
  PRIMARY KEY (source, account)
)
WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
  autovacuum_analyze_threshold = 1000000);
COMMENT ON TABLE rate_budgets IS
  'Calls that may be made to a provider for an account: one token bucket that all processes share.';
COMMENT ON COLUMN rate_budgets.source IS 'Number of the source.';
COMMENT ON COLUMN rate_budgets.account IS 'Account whose limit it is.';
COMMENT ON COLUMN rate_budgets.tokens IS 'Calls that could start at refilled_at.';
COMMENT ON COLUMN rate_budgets.refilled_at IS 'Time at which tokens was computed.';
COMMENT ON COLUMN rate_budgets.blocked_until IS
  'No call starts before this time, because the provider asked for a pause.';
COMMENT ON COLUMN rate_budgets.throttles IS 'How often in a row the provider asked for a pause.';
COMMENT ON COLUMN rate_budgets.in_flight IS 'Calls in progress, each with the Unix time at which it counts as lost.';
COMMENT ON COLUMN rate_budgets.calls IS
  'Number of calls by UTC day, counted in days since 1970-01-01, for the last day with a call and the thirty days '
  'before it.';

CREATE TABLE disconnected_accounts (
  source      int REFERENCES sources (number) NOT NULL,
  account     text NOT NULL,
  since       timestamptz NOT NULL,
  observed_at timestamptz NOT NULL,
  run         bigint NOT NULL,
  reason      text NOT NULL,
  PRIMARY KEY (source, account)
);
COMMENT ON TABLE disconnected_accounts IS
  'Connected accounts that the API key may not read any more. A row is deleted when a run can read the account '
  'again.';
COMMENT ON COLUMN disconnected_accounts.source IS 'Number of the source.';
COMMENT ON COLUMN disconnected_accounts.account IS 'The account.';
COMMENT ON COLUMN disconnected_accounts.since IS 'Time of the first run that could not read it.';
COMMENT ON COLUMN disconnected_accounts.observed_at IS 'Time of the last run that could not read it.';
COMMENT ON COLUMN disconnected_accounts.run IS 'That last run.';
COMMENT ON COLUMN disconnected_accounts.reason IS 'Response of the provider''s API.';

CREATE TABLE object_scans (
  run                 bigint REFERENCES runs (run) ON DELETE CASCADE NOT NULL,
  source              int NOT NULL,
  account             text NOT NULL,
  object_type         text NOT NULL,
  phase               text NOT NULL DEFAULT 'list',
  cursor              text NOT NULL DEFAULT '',
  in_progress         jsonb NOT NULL DEFAULT '[]',
  since               timestamptz,
  until               timestamptz,
  started_at          timestamptz NOT NULL,
  updated_at          timestamptz NOT NULL,
  restarts            int NOT NULL DEFAULT 0,
  tombstones_proposed bigint NOT NULL DEFAULT 0,
  checked             bigint NOT NULL DEFAULT 0,
  missing             bigint NOT NULL DEFAULT 0,
  mirror_older        bigint NOT NULL DEFAULT 0,
  mirror_newer        bigint NOT NULL DEFAULT 0,
  content_differs     bigint NOT NULL DEFAULT 0,
  orphans             bigint NOT NULL DEFAULT 0,
  repaired            bigint NOT NULL DEFAULT 0,
  unrepaired          bigint NOT NULL DEFAULT 0,
  scope               text NOT NULL DEFAULT '',
  skipped_parts       jsonb NOT NULL DEFAULT '[]',
  not_listed          bigint NOT NULL DEFAULT 0,
  rereads             int NOT NULL DEFAULT 0,
  reason              text NOT NULL DEFAULT '',
  versions_only       boolean NOT NULL DEFAULT false,
  PRIMARY KEY (run, object_type),
  CHECK (phase IN ('list', 'orphans', 'tombstones', 'awaiting_approval', 'done', 'skipped', 'not_listable'))
)
WITH (fillfactor = 50);
CREATE INDEX object_scans_done ON object_scans (source, account, object_type, run) WHERE phase = 'done';
CREATE INDEX object_scans_not_listable ON object_scans (source, account, object_type, run)
  WHERE phase = 'not_listable';
COMMENT ON TABLE object_scans IS 'Progress and counts of a run that walks the provider''s list of one object type.';
COMMENT ON COLUMN object_scans.run IS 'The run.';
COMMENT ON COLUMN object_scans.source IS 'Number of the source.';
COMMENT ON COLUMN object_scans.account IS 'Tenant inside the source.';
COMMENT ON COLUMN object_scans.object_type IS 'The object type that is scanned.';
COMMENT ON COLUMN object_scans.phase IS
  'list, orphans, tombstones, awaiting_approval, done, skipped or not_listable.';
COMMENT ON COLUMN object_scans.cursor IS 'Where the walk of the list, or of the mirror, continues.';
COMMENT ON COLUMN object_scans.in_progress IS
  'Objects before the cursor that are not repaired yet: id, kind of drift, and whether it was counted.';
COMMENT ON COLUMN object_scans.since IS
  'Start of the interval of changes that was requested, on the provider''s clock. Null for all objects.';
COMMENT ON COLUMN object_scans.until IS 'End of that interval.';
COMMENT ON COLUMN object_scans.started_at IS
  'The list shows at least everything that happened before this time on the provider''s clock.';
COMMENT ON COLUMN object_scans.updated_at IS 'Time of the last change of this row.';
COMMENT ON COLUMN object_scans.restarts IS 'How often the scan started again from the first page.';
COMMENT ON COLUMN object_scans.tombstones_proposed IS
  'Number of tombstones that needed approval before the first was written. 0 where none did.';
COMMENT ON COLUMN object_scans.checked IS 'Number of objects that were compared.';
COMMENT ON COLUMN object_scans.missing IS 'Number of objects that the mirror did not have.';
COMMENT ON COLUMN object_scans.mirror_older IS 'Number of objects whose mirrored version was older.';
COMMENT ON COLUMN object_scans.mirror_newer IS 'Number of objects whose mirrored version was newer.';
COMMENT ON COLUMN object_scans.content_differs IS 'Number of objects with the same version and other content.';
COMMENT ON COLUMN object_scans.orphans IS 'Number of mirrored objects that the provider does not have.';
COMMENT ON COLUMN object_scans.repaired IS 'Number of objects that were repaired.';
COMMENT ON COLUMN object_scans.unrepaired IS 'Number of objects with drift that were not repaired.';
COMMENT ON COLUMN object_scans.scope IS 'Digest of the list''s definition when the scan started.';
COMMENT ON COLUMN object_scans.skipped_parts IS
  'Parts of the list that could not be read: part, reason, and whether its first page was read.';
COMMENT ON COLUMN object_scans.not_listed IS
  'Number of checked objects that the list does not show and that exist by their ids.';
COMMENT ON COLUMN object_scans.rereads IS 'How often the list was read again for objects in progress.';
COMMENT ON COLUMN object_scans.reason IS
  'Response of the API that shows why the type is not listable. Empty in other phases.';
COMMENT ON COLUMN object_scans.versions_only IS
  'The list shows only versions that not every change moves. A change under an equal version was not noticed.';

CREATE TABLE listed_objects (
  run         bigint NOT NULL,
  object_type text NOT NULL,
  object      bigint NOT NULL,
  unrepaired  boolean NOT NULL DEFAULT false,
  drifted     boolean NOT NULL DEFAULT false,
  PRIMARY KEY (run, object_type, object)
);
COMMENT ON TABLE listed_objects IS
  'Hashes of the objects that a scan has read from the provider''s list. Rows are deleted when the type is done or '
  'after the run.';
COMMENT ON COLUMN listed_objects.run IS 'The run.';
COMMENT ON COLUMN listed_objects.object_type IS 'The object type.';
COMMENT ON COLUMN listed_objects.object IS 'Hash of the object''s id.';
COMMENT ON COLUMN listed_objects.unrepaired IS 'The object differed and was not repaired.';
COMMENT ON COLUMN listed_objects.drifted IS 'The object had a drift when it was first read, and counts as such.';

CREATE TABLE orphans (
  run         bigint REFERENCES runs (run) ON DELETE CASCADE NOT NULL,
  object_type text NOT NULL,
  object_id   text NOT NULL,
  missing_at  timestamptz NOT NULL,
  elapsed_us  bigint NOT NULL,
  body        bytea,
  PRIMARY KEY (run, object_type, object_id)
);
COMMENT ON TABLE orphans IS
  'Mirrored objects that the provider reported as missing. Rows are deleted when their tombstones are in the log, '
  'or after the run.';
COMMENT ON COLUMN orphans.run IS 'The run.';
COMMENT ON COLUMN orphans.object_type IS 'The object type.';
COMMENT ON COLUMN orphans.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN orphans.missing_at IS 'Time at which the provider reported it, on the provider''s clock.';
COMMENT ON COLUMN orphans.elapsed_us IS 'Duration of the request in microseconds.';
COMMENT ON COLUMN orphans.body IS 'Response of the provider in place of the object. Null where it had no body.';

CREATE TABLE drifts (
  run         bigint REFERENCES runs (run) ON DELETE CASCADE NOT NULL,
  source      int NOT NULL,
  account     text NOT NULL,
  object_type text NOT NULL,
  object_id   text NOT NULL,
  kind        text NOT NULL,
  fields      jsonb NOT NULL DEFAULT '[]',
  more_fields int NOT NULL DEFAULT 0,
  event_id    bigint,
  result      text NOT NULL DEFAULT '',
  reason      text NOT NULL DEFAULT '',
  PRIMARY KEY (run, object_type, object_id),
  CHECK (kind IN ('missing', 'mirror_older', 'content_differs', 'orphan')),
  CHECK (result IN ('', 'repaired', 'unrepaired'))
);
CREATE INDEX drifts_object ON drifts (source, account, object_type, object_id);
COMMENT ON TABLE drifts IS
  'Objects whose mirrored state differed from the provider, with the first differences of each run.';
COMMENT ON COLUMN drifts.run IS 'The run.';
COMMENT ON COLUMN drifts.source IS 'Number of the source.';
COMMENT ON COLUMN drifts.account IS 'Tenant inside the source.';
COMMENT ON COLUMN drifts.object_type IS 'The provider''s type of the object.';
COMMENT ON COLUMN drifts.object_id IS 'The provider''s id of the object.';
COMMENT ON COLUMN drifts.kind IS 'missing, mirror_older, content_differs or orphan.';
COMMENT ON COLUMN drifts.fields IS 'The first differing fields with both values.';
COMMENT ON COLUMN drifts.more_fields IS 'Number of further fields that differ.';
COMMENT ON COLUMN drifts.event_id IS 'Refetch event that repaired or was to repair the object.';
COMMENT ON COLUMN drifts.result IS 'repaired, unrepaired, or empty before it is decided.';
COMMENT ON COLUMN drifts.reason IS 'Reason why the drift is unrepaired.';

CREATE TABLE watermarks (
  source      int REFERENCES sources (number) NOT NULL,
  account     text NOT NULL,
  subject     text NOT NULL,
  since       timestamptz NOT NULL,
  until       timestamptz NOT NULL,
  run         bigint NOT NULL,
  recorded_at timestamptz NOT NULL,
  scope       text NOT NULL DEFAULT '',
  PRIMARY KEY (source, account, subject)
)
WITH (fillfactor = 50);
COMMENT ON TABLE watermarks IS
  'Intervals on the provider''s clock for which the log is complete: everything that the provider has is in the log '
  'and has its outcome.';
COMMENT ON COLUMN watermarks.source IS 'Number of the source.';
COMMENT ON COLUMN watermarks.account IS 'Tenant inside the source.';
COMMENT ON COLUMN watermarks.subject IS
  'The data that is complete: events, deliveries, or "type", "versions" or "changes" and an object type. "run" and a '
  'number: the interval that an unfinished run has read.';
COMMENT ON COLUMN watermarks.since IS 'Start of the interval.';
COMMENT ON COLUMN watermarks.until IS 'End of the interval.';
COMMENT ON COLUMN watermarks.run IS 'Run that extended the interval last.';
COMMENT ON COLUMN watermarks.recorded_at IS 'Time of that extension.';
COMMENT ON COLUMN watermarks.scope IS 'Digest of the list''s definition that the interval was checked with.';
