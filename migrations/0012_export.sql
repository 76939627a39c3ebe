-- An operator who exports the log freezes a bound first, for which the floor that ids are made above is raised: to now, and never to what a person chooses,
-- since a floor in the future would give all ids that follow a time that is yet to come, and with it their partitions.
-- Locks: rows of PostgreSQL's catalog alone; nothing that appends or reads waits.
-- +goose Up
-- +goose StatementBegin
-- Raises the floor to now, and to the newest stored event where the clock went back meanwhile, and returns it: whatever was committed before is at or below it.
CREATE FUNCTION raise_floor() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = postern, pg_temp AS $$
  UPDATE postern.log_floor SET ms = greatest(ms, postern.clock_ms(), (SELECT max(e.id) >> 20 FROM postern.events e)) RETURNING ms
$$;
-- +goose StatementEnd
ALTER FUNCTION raise_floor() OWNER TO postern_maintenance;
REVOKE EXECUTE ON FUNCTION raise_floor() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION raise_floor() TO postern_processor, postern_operator;
