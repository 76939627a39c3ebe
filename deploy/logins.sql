-- Creates the roles, logins and database of a Postern installation. An administrator runs it once
-- before `postern migrate up`, and again after a password file has changed. It keeps existing data.
-- postgres.md says what each login may do.
--
--   psql --dbname postgres --set secrets=/etc/postern/secrets --file logins.sql
--
-- The passwords are in the password files that the programs use: one line *:*:*:LOGIN:PASSWORD in
-- each. The processor's file has a second line, for maintenance.
\set ON_ERROR_STOP on
\set migrator1  `cut -d: -f5 :'secrets'/pgpass_migrator`
\set gateway1   `cut -d: -f5 :'secrets'/pgpass_gateway`
\set processor1 `head -n 1 :'secrets'/pgpass_processor | cut -d: -f5`
\set keeper1    `tail -n 1 :'secrets'/pgpass_processor | cut -d: -f5`
\set operator1  `cut -d: -f5 :'secrets'/pgpass_operator`

-- A password file that cannot be read must not result in an empty password.
SELECT NOT ('' IN (:'migrator1', :'gateway1', :'processor1', :'keeper1', :'operator1')) AS complete \gset
\if :complete
\else
  \warn a password is missing: is the folder of the password files right, and may this account read them?
  SELECT 1 / 0 AS "a password is missing";
\endif

SELECT format('CREATE ROLE %I NOLOGIN NOINHERIT', role)
FROM unnest(ARRAY['postern_maintenance', 'postern_gateway', 'postern_processor', 'postern_operator',
  'postern_reader']) role
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) \gexec
SELECT format('CREATE ROLE %I LOGIN', login)
FROM unnest(ARRAY['migrator1', 'gateway1', 'processor1', 'keeper1', 'operator1']) login
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) \gexec

-- migrator1 inherits its roles, because it makes postern_maintenance the owner of its tables. The
-- other logins have no rights until they set a role.
ALTER ROLE migrator1  INHERIT   PASSWORD :'migrator1';
ALTER ROLE gateway1   NOINHERIT PASSWORD :'gateway1';
ALTER ROLE processor1 NOINHERIT PASSWORD :'processor1';
ALTER ROLE keeper1    NOINHERIT PASSWORD :'keeper1';
ALTER ROLE operator1  NOINHERIT PASSWORD :'operator1';

GRANT postern_operator TO postern_gateway, postern_processor;
GRANT postern_maintenance, postern_gateway, postern_processor, postern_operator, postern_reader TO migrator1;
GRANT postern_gateway, postern_operator   TO gateway1;
GRANT postern_processor, postern_operator TO processor1;
GRANT postern_maintenance                 TO keeper1;
GRANT postern_operator                    TO operator1;

-- An administrator that is no superuser, as in a managed service, creates a database only for an
-- owner of which it is a member.
SELECT format('GRANT migrator1 TO %I', current_user)
WHERE NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) \gexec
SELECT 'CREATE DATABASE postern OWNER migrator1'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'postern') \gexec
ALTER DATABASE postern OWNER TO migrator1;
-- Logins of other applications on this server must not connect.
REVOKE CONNECT, TEMPORARY ON DATABASE postern FROM PUBLIC;
GRANT CONNECT ON DATABASE postern TO migrator1, gateway1, processor1, keeper1, operator1, postern_reader;
-- postern doctor reads the size of the database as this role, which requires CONNECT.
GRANT CONNECT ON DATABASE postern TO postern_operator;
