# What the examples' scripts share; they read it in with `.`. With EXAMPLE_BIN, a folder of built programs, nothing is built; with EXAMPLE_DATABASE, the URL of a PostgreSQL, none is started.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
example=$(cd "$(dirname "$0")" && pwd)
config=$example/postern.yaml
work=$(mktemp -d)
chmod 711 "$work" # PostgreSQL's own account may have to enter
started=()

finish() {
  local status=$?
  trap - EXIT
  for pid in ${started[@]+"${started[@]}"}; do kill "$pid" 2>/dev/null || true; done
  wait || true
  if ((status)); then
    echo "$0 ended with $status; what its programs said:" >&2
    tail -n 40 "$work"/*.log >&2
  fi
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT

say() { printf '\n== %s\n' "$*"; }
die() { echo "$*" >&2; exit 1; }

# eventually runs a command until it succeeds, for two minutes at most.
eventually() {
  local end=$((SECONDS + 120))
  until "$@"; do
    ((SECONDS < end)) || die "not within two minutes: $*"
    sleep 0.1
  done
}

# build makes programs of this repository, once.
build() {
  bin=${EXAMPLE_BIN:-$root/bin/dev}
  if [[ -z ${EXAMPLE_BIN:-} ]]; then (cd "$root" && go build -buildvcs=false -o "$bin/" "$@"); fi
}

# serve NAME COMMAND starts a program that says where it listens, and has the address in $url.
serve() {
  local log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 &
  started+=($!)
  eventually grep -qs '^listening on ' "$log"
  url=$(sed -n 's/^listening on //p' "$log" | head -n 1)
}

# start_postern starts everything in one process, or again what was killed.
start_postern() {
  local database=()
  if [[ -n ${EXAMPLE_DATABASE:-} ]]; then database=(--database "$EXAMPLE_DATABASE"); fi
  : >"$work/ready"
  "$bin/postern" dev --config "$config" --dir "$work/state" --listen 127.0.0.1:0 --admin 127.0.0.1:0 ${database[@]+"${database[@]}"} >"$work/ready" 2>>"$work/postern.log" &
  postern_pid=$!
  started+=($!)
  eventually grep -q 'Postern is ready' "$work/ready"
}

# kill_postern ends it as a loss of power would: it gets to do nothing more.
kill_postern() {
  kill -9 "$postern_pid"
  wait "$postern_pid" 2>/dev/null || true
  echo "killed with kill -9"
}

# postern is the command line, about this instance.
postern() { "$bin/postern" "$@" --dir "$work/state"; }

# instance prints where a part of it is reached: ingest_url, database_url.
instance() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$work/state/instance.json"; }

# effects prints how many effects there are in a state.
effects() { postern effects list --state "$1" --limit 1000 | grep -c " $1 " || true; }

# all_done: so many effects are done, and there are no others.
all_done() {
  [[ $(effects "done") == "$1" ]] && [[ $(postern effects list --limit 1000 | tail -n +2 | grep -c .) == "$1" ]]
}
