-- Moves the provider's time of each operator's overwrite from tie_set to the column overwrite_seen.
-- Locks: ROW EXCLUSIVE on objects, staged and bases; each row is read once, those that an operator overwrote are written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
UPDATE objects SET overwrite_seen = (tie_set->0->>'overwrite_seen')::bigint, tie_set = tie_set #- '{0,overwrite_seen}'
WHERE settled <> 0 AND tie_set->0 ? 'overwrite_seen';
UPDATE staged SET overwrite_seen = (tie_set->0->>'overwrite_seen')::bigint, tie_set = tie_set #- '{0,overwrite_seen}'
WHERE settled <> 0 AND tie_set->0 ? 'overwrite_seen';
UPDATE bases SET overwrite_seen = (tie_set->0->>'overwrite_seen')::bigint, tie_set = tie_set #- '{0,overwrite_seen}'
WHERE settled <> 0 AND tie_set->0 ? 'overwrite_seen';
