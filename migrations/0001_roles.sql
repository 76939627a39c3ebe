-- Roles of the daemons, the operator and readers. Roles belong to the whole cluster, so several
-- Postern databases share them.
-- Locks: none on tables.
-- +goose Up
-- +goose StatementBegin
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['postern_maintenance', 'postern_gateway', 'postern_processor', 'postern_operator',
    'postern_reader'] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN NOINHERIT', name);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL; -- the migration of another database of this cluster created it meanwhile
    END;
    -- The migrating login assigns its tables to postern_maintenance and may act as each role. The
    -- test is for USAGE, not MEMBER: since PostgreSQL 16 the creator of a role is a member that may
    -- administer it, but not act as it.
    IF NOT pg_has_role(current_user, name, 'USAGE') THEN
      EXECUTE format('GRANT %I TO %I', name, current_user);
    END IF;
  END LOOP;
  -- The HTTP API of each daemon reads as the operator. The daemon's role may act as it (SET ROLE)
  -- and inherits nothing from it.
  FOREACH name IN ARRAY ARRAY['postern_gateway', 'postern_processor'] LOOP
    BEGIN
      IF NOT pg_has_role(name, 'postern_operator', 'MEMBER') THEN
        EXECUTE format('GRANT postern_operator TO %I', name);
      END IF;
    EXCEPTION WHEN unique_violation THEN
      NULL; -- granted meanwhile, as above
    END;
  END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE insufficient_privilege USING MESSAGE = format(
    'the login %I may not create or grant the role %I; as an administrator run: ALTER ROLE %I CREATEROLE; '
    'or let an administrator migrate and grant this login its roles (%s)', current_user, name, current_user, SQLERRM);
END
$$;
-- +goose StatementEnd
GRANT USAGE, CREATE ON SCHEMA postern TO postern_maintenance;
GRANT USAGE ON SCHEMA postern TO postern_gateway, postern_processor, postern_operator;
