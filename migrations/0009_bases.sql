-- Tables of objects beside the mirror, with its columns and keys: what a rebuild stages, and what is kept of partitions that are dropped, so that a rebuild
-- can start from there.
-- Locks: new tables only.
-- +goose Up
CREATE TABLE staged (LIKE objects INCLUDING ALL) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE bases (LIKE objects INCLUDING ALL) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE staged IS 'objects made anew from the log by a rebuild that is under way, by source';
COMMENT ON TABLE bases IS 'objects as the events of dropped partitions, and they alone, make them';
ALTER TABLE staged OWNER TO postern_maintenance;
ALTER TABLE bases OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON staged TO postern_processor;
GRANT SELECT, INSERT, UPDATE ON bases TO postern_processor;
GRANT SELECT ON staged, bases TO postern_operator;
