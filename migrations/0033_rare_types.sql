-- Lets a sweep over all types note which of them it has passed over, since the mirror has no object of them and their lists cost much.
-- Locks: ACCESS EXCLUSIVE on sweeps while it is read once.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sweeps DROP CONSTRAINT sweeps_phase_check;
ALTER TABLE sweeps ADD CONSTRAINT sweeps_phase_check CHECK (phase IN ('list', 'ghosts', 'graves', 'proposed', 'done', 'rare'));
