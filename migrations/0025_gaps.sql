-- Keeps with a hint which changes of its object were told of and not seen, so that it goes without a look where the events come late.
-- Locks: ACCESS EXCLUSIVE on hints, for a moment; nothing is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE hints ADD COLUMN gaps jsonb;
COMMENT ON COLUMN hints.gaps IS 'pairs of hashes of states, from and to: the changes between them were not seen; null where the hint is for nothing of the kind';
