#!/usr/bin/env bash
# Stripe tells of a subscription three times, each time twice; the application acts three times, though its first answer is lost.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern
export STRIPE_SECRET=whsec_signing_secret_of_the_example
APP_SIGNING_SECRET=whsec_$(head -c 32 /dev/urandom | base64 | tr -d '\n')
export APP_SIGNING_SECRET

say "an application in Python, whose first answer will be lost after it has acted"
serve app env APP_LOSES=1 APP_DATABASE="$work/app.db" python3 "$example/app.py"
export APP_URL=$url
start_postern

say "Stripe delivers three updates of a subscription, each twice"
postern send stripe customer.subscription.updated --config "$config" --count 3 --duplicate 1

say "what the application did"
eventually all_done 3
tail -n +2 "$work/app.log"
[[ $(grep -c '^acted: ' "$work/app.log") == 3 ]] || die "the application did not act three times"
[[ $(grep -c '^seen before: ' "$work/app.log") == 1 ]] || die "the call whose answer was lost was not made again under its webhook-id"

say "somebody else calls it, without the secret"
status=$(curl -s -o /dev/null -w '%{http_code}' -H "webhook-id: 1" -H "webhook-timestamp: $(date +%s)" -H 'webhook-signature: v1,bm90IHRoZSBrZXk=' -d '{}' "$APP_URL")
echo "answered $status"
[[ $status == 401 ]] || die "the application believed it"

say "the ledger"
postern effects list
