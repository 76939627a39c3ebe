-- Lets a sweep of a type wait, while the other types of the run are swept, until a person is asked for all of the run's tombstones at once.
-- Locks: ACCESS EXCLUSIVE on sweeps while it is read once.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sweeps DROP CONSTRAINT sweeps_phase_check;
ALTER TABLE sweeps ADD CONSTRAINT sweeps_phase_check CHECK (phase IN ('list', 'ghosts', 'graves', 'proposed', 'done'));
