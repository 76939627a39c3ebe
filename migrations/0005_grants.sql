-- Who may do what: postern_maintenance owns everything, the daemons own nothing and get only what they use.
-- Locks: ACCESS EXCLUSIVE on the new tables, briefly.
-- +goose Up
-- The new owner of a view must be able to create in its schema, unless a superuser hands it over.
GRANT USAGE, CREATE ON SCHEMA mirror TO postern_maintenance;
-- +goose StatementBegin
DO $$
DECLARE
  thing record;
BEGIN
  FOR thing IN
    SELECT c.oid::regclass AS name, c.relkind FROM pg_class c
    WHERE c.relnamespace IN ('postern'::regnamespace, 'mirror'::regnamespace) AND c.relkind IN ('r', 'p', 'v', 'S')
      AND c.relname NOT LIKE 'schema_migrations%'
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype IN ('i', 'a') AND c.relkind = 'S')
  LOOP
    EXECUTE format('ALTER %s %s OWNER TO postern_maintenance',
      CASE thing.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, thing.name);
  END LOOP;
  FOR thing IN
    SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'postern'::regnamespace
  LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO postern_maintenance', thing.name);
  END LOOP;
END
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION ensure_partitions(bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ensure_partitions(bigint, bigint) TO postern_gateway, postern_processor, postern_maintenance;

GRANT SELECT, INSERT ON sources TO postern_gateway, postern_processor;
GRANT SELECT, UPDATE ON log_floor TO postern_gateway, postern_processor;
GRANT USAGE ON SEQUENCE event_sequence TO postern_gateway;
GRANT SELECT, INSERT ON event_keys, events, event_conflicts TO postern_gateway;
GRANT SELECT, INSERT, DELETE ON rejections TO postern_gateway;

GRANT SELECT ON events, event_keys TO postern_processor;
GRANT SELECT, INSERT, UPDATE ON objects, outcomes, checkpoints TO postern_processor;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox TO postern_processor;

GRANT SELECT ON ALL TABLES IN SCHEMA postern TO postern_operator;
-- An operator may announce the mirror again; the processors send it.
GRANT INSERT ON outbox TO postern_operator;
-- A daemon compares the schema with what it was built for before it starts.
GRANT SELECT ON schema_migrations TO postern_gateway, postern_processor, postern_maintenance;

GRANT USAGE ON SCHEMA mirror TO postern_reader, postern_operator;
GRANT SELECT ON mirror.objects, mirror.events, mirror.outcomes TO postern_reader, postern_operator;
