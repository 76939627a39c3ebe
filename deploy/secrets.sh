#!/usr/bin/env bash
# Makes the secrets of an installation: passwords of the database, certificates for NATS. What is there already is left alone, so a
# password is changed by removing its file first. The provider's signing secrets are not of these: the provider shows you them.
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

# new FILE LOGIN...: a password file as PostgreSQL's clients read it; hexadecimal, so that nothing in it needs escaping.
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

# A container sees only its own, but runs as another account than yours, so that the files must be open to all. The folder is closed
# to everybody else on this machine.
chmod 0700 "$dir"
chmod 0644 "$dir"/*
chmod 0600 "$dir/ca.key"
