-- The console: sessions of browsers, the processes of the instance, how much they do,
-- and stored reports.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE console_sessions (
  digest     bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
  token      text NOT NULL,
  created_at timestamptz NOT NULL,
  used_at    timestamptz NOT NULL,
  address    text NOT NULL,
  user_agent text NOT NULL
);
COMMENT ON TABLE console_sessions IS
  'Open sessions of the console. A session ends with its token, 12 hours after the login, or an hour after its last '
  'request.';
COMMENT ON COLUMN console_sessions.digest IS 'SHA-256 of the session''s secret, which only the browser has.';
COMMENT ON COLUMN console_sessions.token IS 'Name of the token that the operator gave.';
COMMENT ON COLUMN console_sessions.created_at IS 'Time of the login.';
COMMENT ON COLUMN console_sessions.used_at IS 'Time of the last request, updated once a minute at most.';
COMMENT ON COLUMN console_sessions.address IS 'Address of the login.';
COMMENT ON COLUMN console_sessions.user_agent IS 'Browser of the login, as it describes itself.';

CREATE TABLE processes (
  id               text PRIMARY KEY,
  kind             text NOT NULL,
  host             text NOT NULL,
  pid              int NOT NULL,
  version          text NOT NULL,
  admin_address    text NOT NULL,
  started_at       timestamptz NOT NULL,
  reported_at      timestamptz NOT NULL,
  not_ready        text NOT NULL,
  config_loaded_at timestamptz NOT NULL,
  config_digest    text NOT NULL,
  config_problem   text NOT NULL,
  can_reprocess    boolean NOT NULL,
  CHECK (kind IN ('gateway', 'processor', 'serve', 'dev'))
)
WITH (fillfactor = 50);
COMMENT ON TABLE processes IS
  'Running processes. Each reports every 10 seconds, and deletes its row when it stops. The others delete rows that '
  'were not reported for an hour.';
COMMENT ON COLUMN processes.id IS 'Random name of this start of the process.';
COMMENT ON COLUMN processes.kind IS 'gateway, processor, serve or dev.';
COMMENT ON COLUMN processes.host IS 'Name of the machine.';
COMMENT ON COLUMN processes.pid IS 'Number of the process on the machine.';
COMMENT ON COLUMN processes.version IS 'Version and commit of the program.';
COMMENT ON COLUMN processes.admin_address IS 'Address of its admin listener.';
COMMENT ON COLUMN processes.started_at IS 'Time of the start.';
COMMENT ON COLUMN processes.reported_at IS 'Time of the last report.';
COMMENT ON COLUMN processes.not_ready IS 'Reason why it cannot do its work. Empty if it can.';
COMMENT ON COLUMN processes.config_loaded_at IS 'Time at which it loaded its current sources and rules.';
COMMENT ON COLUMN processes.config_digest IS
  'Digest of the sections that are reloaded, without secrets. Processes with equal sections have the same digest.';
COMMENT ON COLUMN processes.config_problem IS
  'Reason why it does not use its current configuration file. Empty without a problem.';
COMMENT ON COLUMN processes.can_reprocess IS
  'True if it can reprocess rejections: it has the signing secrets, and may append.';

CREATE TABLE activity_minutes (
  minute     int NOT NULL,
  source     int NOT NULL,
  stored     int,
  duplicates int,
  conflicts  int,
  rejected   int,
  applied    int,
  unchanged  int,
  stale      int,
  ambiguous  int,
  ignored    int,
  failed     int,
  dead       int,
  PRIMARY KEY (minute, source)
)
WITH (fillfactor = 70);
COMMENT ON TABLE activity_minutes IS
  'About how many events and deliveries each source had in each minute. Rows are kept for 2 days. '
  'Null is 0.';
COMMENT ON COLUMN activity_minutes.minute IS 'Number of the minute since 1970 (UTC).';
COMMENT ON COLUMN activity_minutes.source IS 'Source.';
COMMENT ON COLUMN activity_minutes.stored IS 'Events of accepted deliveries that were stored.';
COMMENT ON COLUMN activity_minutes.duplicates IS 'Events of accepted deliveries that were stored before.';
COMMENT ON COLUMN activity_minutes.conflicts IS
  'Events of accepted deliveries whose key was stored with other content.';
COMMENT ON COLUMN activity_minutes.rejected IS 'Rejected deliveries.';
COMMENT ON COLUMN activity_minutes.applied IS 'Committed outcomes applied.';
COMMENT ON COLUMN activity_minutes.unchanged IS 'Committed outcomes unchanged.';
COMMENT ON COLUMN activity_minutes.stale IS 'Committed outcomes stale.';
COMMENT ON COLUMN activity_minutes.ambiguous IS 'Committed outcomes ambiguous.';
COMMENT ON COLUMN activity_minutes.ignored IS 'Committed outcomes ignored.';
COMMENT ON COLUMN activity_minutes.failed IS 'Committed outcomes failed.';
COMMENT ON COLUMN activity_minutes.dead IS 'Committed outcomes dead.';

CREATE TABLE activity_hours (
  hour       int NOT NULL,
  source     int NOT NULL,
  stored     int,
  duplicates int,
  conflicts  int,
  rejected   int,
  applied    int,
  unchanged  int,
  stale      int,
  ambiguous  int,
  ignored    int,
  failed     int,
  dead       int,
  PRIMARY KEY (hour, source)
)
WITH (fillfactor = 80);
COMMENT ON TABLE activity_hours IS
  'About how many events and deliveries each source had in each hour. Rows are kept for 90 days. '
  'Null is 0.';
COMMENT ON COLUMN activity_hours.hour IS 'Number of the hour since 1970 (UTC).';
COMMENT ON COLUMN activity_hours.source IS 'Source.';
COMMENT ON COLUMN activity_hours.stored IS 'Events of accepted deliveries that were stored.';
COMMENT ON COLUMN activity_hours.duplicates IS 'Events of accepted deliveries that were stored before.';
COMMENT ON COLUMN activity_hours.conflicts IS 'Events of accepted deliveries whose key was stored with other content.';
COMMENT ON COLUMN activity_hours.rejected IS 'Rejected deliveries.';
COMMENT ON COLUMN activity_hours.applied IS 'Committed outcomes applied.';
COMMENT ON COLUMN activity_hours.unchanged IS 'Committed outcomes unchanged.';
COMMENT ON COLUMN activity_hours.stale IS 'Committed outcomes stale.';
COMMENT ON COLUMN activity_hours.ambiguous IS 'Committed outcomes ambiguous.';
COMMENT ON COLUMN activity_hours.ignored IS 'Committed outcomes ignored.';
COMMENT ON COLUMN activity_hours.failed IS 'Committed outcomes failed.';
COMMENT ON COLUMN activity_hours.dead IS 'Committed outcomes dead.';

CREATE TABLE source_types (
  source            int NOT NULL,
  event_type        text NOT NULL,
  first_at          timestamptz NOT NULL,
  last_at           timestamptz NOT NULL,
  count             bigint NOT NULL,
  longest_this_week interval NOT NULL DEFAULT '0',
  longest_last_week interval NOT NULL DEFAULT '0',
  PRIMARY KEY (source, event_type)
)
WITH (fillfactor = 50);
COMMENT ON TABLE source_types IS
  'Event types that deliveries brought, at most 500 for each source. Rows are kept for ever.';
COMMENT ON COLUMN source_types.source IS 'Source.';
COMMENT ON COLUMN source_types.event_type IS 'Event type of the provider. (other) counts all types above the limit.';
COMMENT ON COLUMN source_types.first_at IS 'Time at which the first event was stored.';
COMMENT ON COLUMN source_types.last_at IS 'Time at which the last event was stored.';
COMMENT ON COLUMN source_types.count IS 'About the number of stored events.';
COMMENT ON COLUMN source_types.longest_this_week IS
  'Longest interval between two events that ended in the week of the last event, from Monday (UTC).';
COMMENT ON COLUMN source_types.longest_last_week IS 'The same of the week before.';

CREATE TABLE activity_secrets (
  source   int NOT NULL,
  secret   text NOT NULL,
  hour     int NOT NULL,
  verified int NOT NULL,
  last_at  timestamptz NOT NULL,
  PRIMARY KEY (source, hour, secret)
)
WITH (fillfactor = 70);
COMMENT ON TABLE activity_secrets IS
  'About how many requests each secret of a source verified in each hour. Rows are kept for 30 days.';
COMMENT ON COLUMN activity_secrets.source IS 'Source.';
COMMENT ON COLUMN activity_secrets.secret IS 'Name of the secret in the configuration.';
COMMENT ON COLUMN activity_secrets.hour IS 'Number of the hour since 1970 (UTC).';
COMMENT ON COLUMN activity_secrets.verified IS 'Requests with a right signature.';
COMMENT ON COLUMN activity_secrets.last_at IS 'Time at which a process last reported such a request.';

CREATE TABLE verify_reports (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  stored_at timestamptz NOT NULL DEFAULT clock_now(),
  stored_by text NOT NULL,
  report    jsonb NOT NULL
);
COMMENT ON TABLE verify_reports IS 'The last 20 reports of postern verify --store-report.';
COMMENT ON COLUMN verify_reports.id IS 'Number of the report.';
COMMENT ON COLUMN verify_reports.stored_at IS 'Time at which it was stored.';
COMMENT ON COLUMN verify_reports.stored_by IS 'Operator who stored it.';
COMMENT ON COLUMN verify_reports.report IS
  'The report as JSON, without the single violations: they have ids of objects, which a redaction would have to erase.';

ALTER TABLE console_sessions OWNER TO postern_maintenance;
ALTER TABLE processes OWNER TO postern_maintenance;
ALTER TABLE activity_minutes OWNER TO postern_maintenance;
ALTER TABLE activity_hours OWNER TO postern_maintenance;
ALTER TABLE source_types OWNER TO postern_maintenance;
ALTER TABLE activity_secrets OWNER TO postern_maintenance;
ALTER TABLE verify_reports OWNER TO postern_maintenance;
GRANT SELECT, INSERT, DELETE ON verify_reports TO postern_operator;
GRANT SELECT, INSERT, UPDATE, DELETE ON console_sessions, processes, activity_minutes, activity_hours,
  source_types, activity_secrets TO postern_operator;
