-- The console: sessions of browsers, and the processes of the instance.
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
COMMENT ON COLUMN processes.can_reprocess IS
  'True if it can reprocess rejections: it has the signing secrets, and may append.';

ALTER TABLE console_sessions OWNER TO postern_maintenance;
ALTER TABLE processes OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON console_sessions, processes TO postern_operator;
