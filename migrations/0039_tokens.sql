-- Keeps the tokens by which callers of the admin interface say who they are. Of a token only a digest is kept.
-- Locks: none on what is there.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE TABLE tokens (
  name       text        PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
  role       text        NOT NULL CHECK (role IN ('reader', 'operator')),
  digest     bytea       NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
  made_at    timestamptz NOT NULL DEFAULT clock_now(),
  made_by    text        NOT NULL,
  expires_at timestamptz,
  revoked_at timestamptz,
  used_on    date
);
COMMENT ON TABLE tokens IS 'who may ask the admin interface; a name is never given again, so that the audit stays clear';
COMMENT ON COLUMN tokens.digest IS 'SHA-256 of the token';
COMMENT ON COLUMN tokens.used_on IS 'the last day (UTC) on which it was used';
ALTER TABLE tokens OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE (revoked_at, used_on) ON tokens TO postern_operator;
