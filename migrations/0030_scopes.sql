-- Keeps with what is proven of a type, and with the sweep that proves it, what was listed: with other settings it may be less than all.
-- Locks: ACCESS EXCLUSIVE on watermarks and sweeps, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE watermarks ADD COLUMN scope text NOT NULL DEFAULT '';
ALTER TABLE sweeps ADD COLUMN scope text NOT NULL DEFAULT '';
COMMENT ON COLUMN watermarks.scope IS 'digest of the list that the type was proven by; empty for events, and where it was proven before this column';
COMMENT ON COLUMN sweeps.scope IS 'digest of the list when the sweep began';
