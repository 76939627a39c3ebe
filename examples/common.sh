# Functions for the examples' scripts, which source this file. EXAMPLE_BIN names a folder of built
# programs; then nothing is built. EXAMPLE_DATABASE is the URL of a PostgreSQL; then none is
# started.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
example=$(cd "$(dirname "$0")" && pwd)
config=$example/postern.yaml
work=$(mktemp -d)
chmod 711 "$work" # PostgreSQL's account may need access
started=()

finish() {
  local status=$?
  trap - EXIT
  for pid in ${started[@]+"${started[@]}"}; do kill "$pid" 2>/dev/null || true; done
  wait || true
  if ((status)); then
    echo "$0 ended with $status; output of its programs:" >&2
    tail -n 40 "$work"/*.log >&2
  fi
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT

say() { printf '\n== %s\n' "$*"; }
die() { echo "$*" >&2; exit 1; }

# eventually repeats a command until it succeeds, for at most two minutes.
eventually() {
  local end=$((SECONDS + 120))
  until "$@"; do
    ((SECONDS < end)) || die "not within two minutes: $*"
    sleep 0.1
  done
}

# build builds programs of this repository.
build() {
  bin=${EXAMPLE_BIN:-$root/bin/dev}
  if [[ -z ${EXAMPLE_BIN:-} ]]; then (cd "$root" && go build -buildvcs=false -o "$bin/" "$@"); fi
}

# serve NAME COMMAND starts a program that prints its address, and sets $url to it.
serve() {
  local log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 &
  started+=($!)
  eventually grep -qs '^listening on ' "$log"
  url=$(sed -n 's/^listening on //p' "$log" | head -n 1)
}

# start_postern starts everything in one process, also after a kill.
start_postern() {
  local database=()
  if [[ -n ${EXAMPLE_DATABASE:-} ]]; then database=(--database "$EXAMPLE_DATABASE"); fi
  : >"$work/ready"
  "$bin/postern" dev --config "$config" --dir "$work/state" --listen 127.0.0.1:0 --admin 127.0.0.1:0 \
    ${database[@]+"${database[@]}"} >"$work/ready" 2>>"$work/postern.log" &
  postern_pid=$!
  started+=($!)
  eventually grep -q 'Postern is ready' "$work/ready"
}

# kill_postern ends it like a power failure: without a chance to clean up.
kill_postern() {
  kill -9 "$postern_pid"
  wait "$postern_pid" 2>/dev/null || true
  echo "killed with kill -9"
}

# set_clock SECONDS sets the database's clock to a time, in seconds since 1970. It goes on from
# there, and decides when a window ends and when the lease of a dead process is over.
set_clock() {
  psql -qX "$(instance database_url)" -c "CREATE OR REPLACE FUNCTION postern.clock_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE AS \$\$SELECT clock_timestamp() + interval '$(($1 - $(date +%s))) seconds'\$\$"
}

# push SOURCE TOKEN TYPE ID DATA pushes an event about an object, and waits until the mirror has the
# object.
push() {
  curl -fsS "$(instance ingest_url)/webhooks/$1" -o /dev/null -H "Authorization: Bearer $2" \
    -H 'Content-Type: application/cloudevents+json' \
    -d "{\"specversion\": \"1.0\", \"id\": \"$4-made\", \"source\": \"/$1\", \"type\": \"com.example.$3.made\",
         \"subject\": \"$4\", \"time\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\", \"data\": $5}"
  eventually mirrored "$1" "$3" "$4"
}

mirrored() { postern objects show "$@" >"$work/shown" 2>&1; }

# hangs FAULT PATH BODY: a request to the sink gets no response until its caller disconnects.
hangs() { curl -fsS -X POST -G "$SINK_URL/-/faults" -d "fault=$1" -d "path=$2" -d "body=$3"; }

# hanging NUMBER succeeds when so many requests to the sink get no response.
hanging() { [[ $(curl -fsS "$SINK_URL/-/hanging") == "$1" ]]; }

# postern runs the command line against this instance.
postern() { "$bin/postern" "$@" --dir "$work/state"; }

# instance prints an address of the instance: ingest_url or database_url.
instance() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$work/state/instance.json"; }

# effects prints the number of effects in a state.
effects() { postern effects list --state "$1" --limit 1000 | grep -c " $1 " || true; }

# all_done NUMBER succeeds when so many effects are done and there are no others.
all_done() {
  local all
  all=$(postern effects list --limit 1000 | tail -n +2)
  [[ $(grep -c . <<<"$all") == "$1" && $(grep -c ' done ' <<<"$all") == "$1" ]]
}
