-- Says what the number of an effect that happens again on purpose is: that of the run that planned it, so that a run that is killed and goes on plans it once.
-- Locks: none that anybody waits for.
-- +goose Up
COMMENT ON COLUMN effects.forced IS 'the run, a replay of mode force, that had it happen again on purpose; 0 for the first';
