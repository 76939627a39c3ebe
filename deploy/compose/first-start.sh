#!/usr/bin/env bash
# PostgreSQL's image runs this once, before its first start: it creates roles, logins and the
# database.
set -euo pipefail
psql --username postgres --dbname postgres --no-psqlrc --quiet --set secrets=/run/secrets \
  --file /etc/postgresql/logins.sql
