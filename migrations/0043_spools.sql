-- Keeps which gateways have a spool, and when it was empty last, so that a redaction waits until what came before it is in the log.
-- Locks: a new table only.
-- +goose Up
CREATE TABLE spools (
  spool    text PRIMARY KEY,
  place    text NOT NULL,
  empty_at timestamptz NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE spools IS 'spools of gateways that run, or ended without the time to say that nothing is left; whoever takes one away for good deletes its row';
COMMENT ON COLUMN spools.place IS 'for a person: machine and folder';
COMMENT ON COLUMN spools.empty_at IS 'all that the gateway had acknowledged by then was in the log';
ALTER TABLE spools OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON spools TO postern_gateway;
GRANT SELECT ON spools TO postern_processor;
GRANT SELECT, DELETE ON spools TO postern_operator;
