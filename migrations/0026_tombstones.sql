-- Counts the tombstones that looks of hints make, so that many within an hour wait for a person, over all processes.
-- Locks: none on what is there.
-- +goose Up
CREATE TABLE tombstones (
  source      int         NOT NULL,
  account     text        NOT NULL,
  object_type text        NOT NULL,
  object_id   text        NOT NULL,
  at          timestamptz NOT NULL,
  PRIMARY KEY (source, account, object_type, object_id)
);
COMMENT ON TABLE tombstones IS 'objects that were alive here and that a look of their hint has found to be missing, of the last hour';
ALTER TABLE tombstones OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON tombstones TO postern_processor;
