-- Records what the processors' configuration lets them read of each source's API, so that a reconciliation that cannot
-- succeed is rejected when it is requested.
-- Locks: ACCESS EXCLUSIVE on sources, for a moment; no row is read or written.
-- +goose Up
SET LOCAL lock_timeout = '5s';
ALTER TABLE sources ADD COLUMN api_reads text[];
COMMENT ON COLUMN sources.api_reads IS 'what a processor can read of the provider''s API: object, objects, events; empty without a section api; null before a processor has reported';
GRANT UPDATE (api_reads) ON sources TO postern_processor;
