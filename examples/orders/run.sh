#!/usr/bin/env bash
# Sends eight paid orders to accounting. Postern is killed while each of them is at another point,
# before or after one of its four steps. After the restart each step of each order is done once.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern ./examples/sink
export SHOP_TOKEN=token-of-the-shop-0123456789

say "start accounting and store, which honour idempotency keys, and mail, which does not"
serve sink "$bin/sink" -listen 127.0.0.1:0 -ignores mail
export SINK_URL=$url
start_postern

# hangs FAULT PATH BODY: the request gets no response until its caller disconnects.
hangs() { curl -fsS -X POST -G "$SINK_URL/-/faults" -d "fault=$1" -d "path=$2" -d "body=$3"; }
hangs hangs /accounting/customers/71 ''
hangs acts_hangs /accounting/customers/72 ''
hangs hangs /accounting/invoices '"1003"'
hangs acts_hangs /accounting/invoices '"1004"'
hangs hangs /store/orders/1005 ''
hangs acts_hangs /store/orders/1006 ''
hangs hangs /mail/messages '"1007"'
hangs acts_hangs /mail/messages '"1008"'

push_orders() {
  curl -fsS "$(instance ingest_url)/webhooks/shop" -H "Authorization: Bearer $SHOP_TOKEN" \
    -H 'Content-Type: application/cloudevents-batch+json' --data-binary "@$example/orders.json"
}
say "the shop pushes its orders"
push_orders

say "each order hangs at another point: 1001 before its customer is created, 1002 after it, 1003 before its invoice..."
hanging() { [[ $(curl -fsS "$SINK_URL/-/hanging") == 8 ]]; }
eventually hanging
kill_postern

say "restart: this process continues the effects when the leases of the dead process are over (50 seconds)"
start_postern
eventually all_done 8

say "the shop pushes its orders again, and all events are replayed"
push_orders | head -c 100
echo ...
postern replay --source shop --mode missing --yes --reason "check that no effect happens twice"
all_done 8 || die "there are other effects than the eight"

say "completed requests, with the number of times"
curl -fsS "$SINK_URL/-/did" | tee "$work/did"
twice=$(grep -vc '^1 ' "$work/did" || true)
[[ $(wc -l <"$work/did") == 27 && $twice == 0 ]] ||
  die "not 3 customers, 8 invoices, 8 orders synced and 8 mails, each once"

say "the order that was killed before its invoice: the ledger has the ids from accounting and of the mail"
postern effects show "$(postern effects list --object 1003 | awk 'NR == 2 {print $1}')"
