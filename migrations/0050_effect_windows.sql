-- Keeps how far each rule on a schedule is: which of its windows were seen to, where in the objects it is, and of which ambiguous objects the answer is still owed.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE effect_windows (
  rule         text NOT NULL,
  source       int NOT NULL,
  object_type  text NOT NULL,
  cron         text NOT NULL,
  time_zone    text NOT NULL,
  decided_at   timestamptz NOT NULL,
  window_start timestamptz,
  window_end   timestamptz,
  account      text NOT NULL DEFAULT '',
  object_id    text NOT NULL DEFAULT '',
  PRIMARY KEY (rule, source, object_type, cron, time_zone),
  CHECK ((window_start IS NULL) = (window_end IS NULL)),
  CHECK (window_start < window_end)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_windows IS 'how far rules on a schedule are; whoever sees to a window locks its row, and moves it in the transaction that plans effects';
COMMENT ON COLUMN effect_windows.decided_at IS 'all windows that end up to then were seen to, or passed over';
COMMENT ON COLUMN effect_windows.window_end IS 'the window that is being seen to; null: none is';
COMMENT ON COLUMN effect_windows.object_id IS 'with account: objects up to this one were seen to';

CREATE TABLE effect_window_waits (
  rule         text NOT NULL,
  source       int NOT NULL,
  account      text NOT NULL,
  object_type  text NOT NULL,
  object_id    text NOT NULL,
  window_start timestamptz NOT NULL,
  window_end   timestamptz NOT NULL,
  PRIMARY KEY (rule, source, object_type, account, object_id, window_end, window_start)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE effect_window_waits IS 'objects that were ambiguous when a window came to them: its rule is asked about them when they are certain';

ALTER TABLE effect_windows OWNER TO postern_maintenance;
ALTER TABLE effect_window_waits OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE ON effect_windows TO postern_processor;
GRANT SELECT, INSERT, DELETE ON effect_window_waits TO postern_processor;
GRANT SELECT ON effect_windows, effect_window_waits TO postern_operator;
