-- Tells a rule that was out of the configuration from one that no processor was there for: for how long rules on a schedule were asked at all, and when by that each was asked last.
-- Locks: ACCESS EXCLUSIVE on effect_windows, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE TABLE effect_asking (
  one     bool NOT NULL DEFAULT true PRIMARY KEY CHECK (one),
  at      timestamptz NOT NULL,
  seconds bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO effect_asking (at) VALUES (clock_now());
COMMENT ON TABLE effect_asking IS 'for how long processors have looked for rules on a schedule that are due, whatever rules they had; it stands still while there is none';
COMMENT ON COLUMN effect_asking.at IS 'when seconds was counted last';

ALTER TABLE effect_windows ADD COLUMN asked bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN effect_windows.asked IS 'effect_asking.seconds when a processor had the rule last';

ALTER TABLE effect_asking OWNER TO postern_maintenance;
GRANT SELECT, UPDATE ON effect_asking TO postern_processor;
GRANT SELECT ON effect_asking TO postern_operator;
