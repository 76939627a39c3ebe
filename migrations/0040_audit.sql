-- Keeps who changed what and why, for good, and the answers to requests that carry a key, for a day. Both are written in the transaction of the change.
-- Locks: none on what is there.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE TABLE audit (
  id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at            timestamptz NOT NULL DEFAULT clock_now(),
  database_user text        NOT NULL DEFAULT session_user,
  who           text        NOT NULL,
  via           text        NOT NULL CHECK (via IN ('token', 'loopback', 'command')),
  address       text        NOT NULL,
  action        text        NOT NULL CHECK (action <> ''),
  target        text        NOT NULL,
  reason        text        NOT NULL,
  run           bigint
);
COMMENT ON TABLE audit IS 'every change that a person made, by the admin interface or by a command';
COMMENT ON COLUMN audit.database_user IS 'the login that the change was made with, which PostgreSQL has proven; who may only insert has no say in it, nor in the time';
COMMENT ON COLUMN audit.who IS 'via token: its name; via command: the account and machine that the command told; via loopback: nobody was asked';

-- +goose StatementBegin
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: % is refused', lower(TG_OP) USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();
ALTER TABLE audit OWNER TO postern_maintenance;
ALTER FUNCTION refuse_audit_change() OWNER TO postern_maintenance;
GRANT SELECT ON audit TO postern_operator;
GRANT INSERT (who, via, address, action, target, reason, run) ON audit TO postern_operator, postern_gateway;

CREATE TABLE idempotency_keys (
  scope        text        NOT NULL,
  key          text        NOT NULL,
  fingerprint  bytea       NOT NULL,
  made_at      timestamptz NOT NULL,
  owner        text        NOT NULL,
  leased_until timestamptz NOT NULL,
  status       int,
  content_type text        NOT NULL DEFAULT '',
  body         bytea       COMPRESSION lz4,
  PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_keys_made ON idempotency_keys (made_at);
COMMENT ON TABLE idempotency_keys IS 'requests that were sent with a key, and what they were answered';
COMMENT ON COLUMN idempotency_keys.scope IS 'whose the key is, and for which route';
COMMENT ON COLUMN idempotency_keys.owner IS 'the request that carries it out, as long as its lease holds';
COMMENT ON COLUMN idempotency_keys.status IS 'of the answer; null: there is none yet, or there was nothing to keep';
ALTER TABLE idempotency_keys OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_keys TO postern_operator;
