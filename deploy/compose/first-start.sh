#!/usr/bin/env bash
# Run once by PostgreSQL's image, before the first start proper: roles, logins and the database.
set -euo pipefail
psql --username postgres --dbname postgres --no-psqlrc --quiet --set secrets=/run/secrets --file /etc/postgresql/logins.sql
