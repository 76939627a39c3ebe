-- Finds the newest sweep of each type that is done, for the metrics of drift, without reading all sweeps of all runs.
-- Locks: SHARE on sweeps, while it is read once: sweeps that are under way wait; nothing else does.
-- +goose Up
SET LOCAL lock_timeout = '5s';
CREATE INDEX sweeps_done ON sweeps (source, account, object_type, run) WHERE phase = 'done';
