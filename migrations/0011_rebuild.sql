-- Lets a source have one open rebuild at most: two would stage into the same rows.
-- Locks: SHARE on runs, briefly.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE UNIQUE INDEX runs_one_rebuild ON runs ((asked ->> 'source')) WHERE job = 'rebuild' AND ended_at IS NULL;
COMMENT ON TABLE staged IS 'objects made anew from the log by a rebuild that is open, by source; what an ended one left is cleared';
