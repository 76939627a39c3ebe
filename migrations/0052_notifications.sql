-- Keeps what was told to whom about runs, outcomes and effects that need a person, so that neither a crash nor another process tells it again.
-- Locks: a new table only.
-- +goose Up
CREATE TABLE notifications (
  name        text NOT NULL,
  about       text NOT NULL,
  turn        bigint NOT NULL DEFAULT 0,
  since       timestamptz,
  told_at     timestamptz,
  mark        timestamptz NOT NULL,
  attempts    int NOT NULL DEFAULT 0,
  taken_until timestamptz,
  trouble     text NOT NULL DEFAULT '',
  PRIMARY KEY (name, about)
) WITH (fillfactor = 70);
COMMENT ON TABLE notifications IS 'what the configuration''s notify has told: a row for each name, and kind of what it tells';
COMMENT ON COLUMN notifications.turn IS 'counts what was told; what is told again for want of an answer has the same';
COMMENT ON COLUMN notifications.since IS 'when what lasts was first told; null: nothing lasts';
COMMENT ON COLUMN notifications.mark IS 'of runs: what ended up to then was told, or was no failure';
COMMENT ON COLUMN notifications.attempts IS 'that came to nothing since something was told';
COMMENT ON COLUMN notifications.taken_until IS 'a process tells it, or waits after it could not, until then';
ALTER TABLE notifications OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE ON notifications TO postern_processor;
GRANT SELECT ON notifications TO postern_operator;
