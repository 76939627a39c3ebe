-- The feed of changes: named cursors of its readers.
-- Locks: a new table only.
-- +goose Up
CREATE TABLE feed_cursors (
  name         text PRIMARY KEY,
  epoch        text NOT NULL,
  number       bigint NOT NULL,
  stalls_after interval,
  created_at   timestamptz NOT NULL,
  moved_at     timestamptz NOT NULL,
  moved_by     text NOT NULL,
  behind_since timestamptz,
  by_reader    boolean NOT NULL DEFAULT false
)
WITH (fillfactor = 50);
COMMENT ON TABLE feed_cursors IS
  'Named cursors: how far readers have processed the changes, as they report it. At most 1,000.';
COMMENT ON COLUMN feed_cursors.name IS 'Name that the reader has given.';
COMMENT ON COLUMN feed_cursors.epoch IS 'Epoch of the number, as in change_feed.';
COMMENT ON COLUMN feed_cursors.number IS 'Number of the last change that the reader has processed.';
COMMENT ON COLUMN feed_cursors.stalls_after IS
  'How long the cursor may stand still with unread changes before operators are alerted. Null: they are not.';
COMMENT ON COLUMN feed_cursors.created_at IS 'Time at which the cursor was created.';
COMMENT ON COLUMN feed_cursors.moved_at IS 'Time at which the reader last reported.';
COMMENT ON COLUMN feed_cursors.moved_by IS 'Actor that last reported.';
COMMENT ON COLUMN feed_cursors.behind_since IS
  'Time since which the cursor stands still with unread changes. Processors set it, and a report clears it.';
COMMENT ON COLUMN feed_cursors.by_reader IS
  'The last report is by a token without the role operator. Only this token or an operator may move the cursor.';

ALTER TABLE feed_cursors OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON feed_cursors TO postern_operator;
GRANT SELECT, UPDATE (behind_since) ON feed_cursors TO postern_processor;
