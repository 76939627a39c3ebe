-- The console: sessions of browsers.
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

ALTER TABLE console_sessions OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON console_sessions TO postern_operator;
