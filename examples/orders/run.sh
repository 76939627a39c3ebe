#!/usr/bin/env bash
# Sends nine paid orders to accounting. Postern is killed while each of them is at another point,
# before or after one of its steps. After the restart each step of each order is done once.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern ./examples/sink
export SHOP_TOKEN=token-of-the-shop-0123456789

say "start accounting and store, which honour idempotency keys, and mail, which does not"
serve sink "$bin/sink" -listen 127.0.0.1:0 -ignores mail
export SINK_URL=$url
start_postern

hangs hangs /accounting/customers email=ada
hangs hangs /accounting/customers '"grace@'
hangs acts_hangs /accounting/customers '"barbara@'
hangs hangs /accounting/invoices '"1004"'
hangs acts_hangs /accounting/invoices '"1005"'
hangs hangs /store/orders/1006 ''
hangs acts_hangs /store/orders/1007 ''
hangs hangs /mail/messages '"1008"'
hangs acts_hangs /mail/messages '"1009"'
say "accounting has one of the customers already"
curl -fsS "$SINK_URL/accounting/customers" -d '{"name": "Edsger", "email": "edsger@example.com"}'

push_orders() {
  curl -fsS "$(instance ingest_url)/webhooks/shop" -H "Authorization: Bearer $SHOP_TOKEN" \
    -H 'Content-Type: application/cloudevents-batch+json' --data-binary "@$example/orders.json"
}
say "the shop pushes its orders"
push_orders

say "each order hangs at another point: 1001 while accounting is searched, 1002 before its customer is created, 1003" \
  "after it, 1004 before its invoice..."
eventually hanging 9
kill_postern

say "restart: this process continues the effects when the leases of the dead process are over (50 seconds)"
start_postern
eventually all_done 9

say "the shop pushes its orders again, and all events are replayed"
push_orders | head -c 100
echo ...
postern replay --source shop --mode missing --yes --reason "check that no effect happens twice"
all_done 9 || die "there are other effects than the nine"

say "completed requests, with the number of times"
curl -fsS "$SINK_URL/-/did" | tee "$work/did"
twice=$(grep -vc '^1 ' "$work/did" || true)
[[ $(wc -l <"$work/did") == 31 && $twice == 0 ]] ||
  die "not 4 customers, 9 invoices, 9 orders synced and 9 mails, each once"

say "the order that was killed before its invoice: the ledger has the ids from accounting and of the mail, and why" \
  "no customer was created"
postern effects show "$(postern effects list --object 1004 | awk 'NR == 2 {print $1}')"
