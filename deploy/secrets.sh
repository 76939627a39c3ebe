#!/usr/bin/env bash
# Creates the secrets of an installation: passwords of the database and certificates for NATS.
# Existing files stay as they are, so remove a file first to change its password. Signing secrets
# are not created here: the provider shows them to you.
# usage: deploy/secrets.sh [DIR [HOST...]]
#   DIR     default deploy/compose/secrets
#   HOST    names and addresses of the NATS servers; default nats
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/compose/secrets}
hosts=("${@:2}")

umask 077
mkdir -p "$dir"
"$here/certificates.sh" "$dir" "${hosts[@]:-nats}"

# new FILE LOGIN... creates a password file for PostgreSQL's clients. The passwords are hexadecimal,
# so that no character needs escaping.
new() {
  local file=$dir/$1 login
  if [[ -e $file ]]; then return; fi
  shift
  for login in "$@"; do echo "*:*:*:$login:$(openssl rand -hex 24)"; done >"$file"
}
new pgpass_migrator migrator1
new pgpass_gateway gateway1
new pgpass_processor processor1 keeper1
new pgpass_operator operator1
[[ -e $dir/postgres ]] || openssl rand -hex 24 >"$dir/postgres"

# A container sees only its own files but runs with another account than yours, so the files are
# readable for all. The folder is closed to all other users of this machine.
chmod 0700 "$dir"
chmod 0644 "$dir"/*
[[ ! -e $dir/ca.key ]] || chmod 0600 "$dir/ca.key"
