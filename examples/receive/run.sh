#!/usr/bin/env bash
# Stripe sends updates while Postern is killed in the middle; then an object is redacted. Each of
# three receivers, in Go, Node and Python, has the latest revision of each object at the end.
. "$(dirname "$0")/../common.sh"
for program in node python3; do
  command -v "$program" >/dev/null || die "this example needs $program"
done
build ./cmd/postern ./examples/receive/receiver
export STRIPE_SECRET=whsec_signing_secret_of_the_example
FORWARD_SECRET=whsec_$(head -c 32 /dev/urandom | base64 | tr -d '\n')
export FORWARD_SECRET

say "start a receiver in each language"
serve go "$bin/receiver" && export GO_URL=$url
serve node node "$example/receive.mjs" && export NODE_URL=$url
serve python env RECEIVER_DATABASE="$work/changes.db" python3 "$example/receive.py" && export PYTHON_URL=$url
start_postern

deliver() { postern send stripe "$1" --config "$config" --count "$2" --duplicate 1 >"$work/sent"; }

# latest prints the highest revision that a receiver has of each object.
latest() {
  sed -nE 's/^(store|erase) ([a-z]+ [^ ]+) revision ([0-9]+)$/\2 \3/p' "$work/$1.log" |
    sort -k1,2 -k3n | awk '{ last[$1 " " $2] = $3 } END { for (o in last) print o, last[o] }' | sort
}

# mirrored prints the revision of each object in the mirror.
mirrored() {
  psql -qXAt -F ' ' "$(instance database_url)" -c "SELECT object_type, object_id, revision FROM mirror.objects
    WHERE object_type IN ('invoice', 'subscription')" | sort
}

caught_up() { [[ -n $(mirrored) && $(latest "$1" | grep -E '^(invoice|subscription) ') == "$(mirrored)" ]]; }

# all_sent succeeds when each message has a response, or is superseded or rejected.
all_sent() {
  local states
  states=$(postern effects list --limit 0 -o json | sed -nE 's/.*"state": ?"([a-z_]+)".*/\1/p')
  [[ -n $states ]] && ! grep -vxE 'done|superseded|rejected' <<<"$states" >"$work/open"
}

say "Stripe delivers updates, each twice; Postern is killed in the middle and starts again"
deliver customer.subscription.updated 5
eventually grep -q '^store subscription' "$work/python.log"
deliver invoice.paid 20 &
eventually grep -q '^store invoice' "$work/node.log"
kill_postern
wait $! 2>/dev/null || true
start_postern
deliver customer.subscription.updated 5
for receiver in go node python; do eventually caught_up "$receiver"; done
eventually all_sent # a message that the kill interrupted is sent again, which needs its state

say "the subscription is redacted"
subscription=$(mirrored | sed -n 's/^subscription \([^ ]*\) .*/\1/p' | head -n 1)
postern redact --source stripe --object-type subscription --object "$subscription" --reason 'the example' --yes \
  --config "$config" >"$work/redacted"
for receiver in go node python; do
  eventually grep -q "^erase subscription $subscription " "$work/$receiver.log"
  eventually caught_up "$receiver"
  grep -E "^(store|erase) subscription $subscription " "$work/$receiver.log" | tail -n 2 | sed "s/^/$receiver: /"
done

say "each receiver rejects a message without a valid signature, and an old one"
for url in "$GO_URL" "$NODE_URL" "$PYTHON_URL"; do
  for at in "$(date +%s)" 1700000000; do
    key=$(base64 -d <<<"${FORWARD_SECRET#whsec_}" | od -An -v -tx1 | tr -d ' \n')
    if [[ $at != 1700000000 ]]; then key=00; fi
    signature=$(printf '%s.%s.%s' 1 "$at" '{}' | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
    status=$(curl -s -o "$work/curl.out" -w '%{http_code}' -H "webhook-id: 1" -H "webhook-timestamp: $at" \
      -H "webhook-signature: v1,$signature" -d '{}' "$url")
    echo "status $status"
    [[ $status == 401 ]] || die "$url accepted it"
  done
done

eventually all_sent

say "the ledger"
postern effects list --limit 5
