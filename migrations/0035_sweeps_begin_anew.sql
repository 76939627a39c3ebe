-- Lets a sweep of a type begin anew, where its list is asked for in another way than when it began.
-- Locks: none that anybody waits for.
-- +goose Up
SET LOCAL lock_timeout = '5s';
GRANT DELETE ON sweeps TO postern_processor;
