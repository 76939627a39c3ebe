// Asks official SDKs for Node what they make of a delivery. A question is a line of JSON on the standard input, its answer a line on
// the standard output; the first line says that every SDK is loaded. What one throws while it verifies is a refusal, told as `why`.
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { parse as parseForm } from "node:querystring";

const require = createRequire(import.meta.url);

// The standard output is for answers; what an SDK logs goes to the other.
console.log = console.info = console.debug = console.error;

// once keeps what a loader made.
const once = (load) => {
  let made;
  return () => (made ??= load());
};

// Where an SDK's main module loads everything that its API has, the one file that verifies is loaded in its place.
const adyen = once(() => new (require("@adyen/api-library/lib/src/utils/hmacValidator.js").default)());
const box = once(() => require("box-node-sdk/lib/managers/webhooks").WebhooksManager);
const boxUtils = once(() => require("box-node-sdk/lib/internal/utils"));
const coinbase = once(() => require("coinbase-commerce-node").Webhook);
const discord = once(() => require("discord-interactions"));
const easypost = once(() => new (require("@easypost/api").default ?? require("@easypost/api"))("none").Utils);
const gocardless = once(() => require("gocardless-nodejs"));
const hubspot = once(() => require("@hubspot/api-client/lib/src/utils/signature.js").Signature);
const linear = once(() => import("@linear/sdk/webhooks"));
const notion = once(() => require("@notionhq/client"));
const octokit = once(() => import("@octokit/webhooks-methods"));
const razorpay = once(() => require("razorpay/dist/utils/razorpay-utils.js"));
const sanity = once(() => require("@sanity/webhook"));
const square = once(() => require(join(dirname(require.resolve("square")), "wrapper/WebhooksHelper.js")).WebhooksHelper);
const twilio = once(() => require("twilio/lib/webhooks/webhooks.js"));
const workos = once(() => new (require("@workos-inc/node").WorkOS)("sk_test_none").webhooks);
const shopify = once(async () => {
  await import("@shopify/shopify-api/adapters/node");
  return import("@shopify/shopify-api");
});

const loaders = [adyen, box, boxUtils, coinbase, discord, easypost, gocardless, hubspot, linear, notion, octokit, razorpay, sanity, shopify, square, twilio, workos];

// A form's fields as express reads them: a repeated one is a list.
const fields = (q) => ({ ...parseForm(q.text) });

// signers give the headers that an SDK signs a delivery with.
const signers = {
  adyen: async (q) => ({ item: adyen().calculateHmac(JSON.parse(q.text), q.secret) }),
  box: async (q) => {
    const time = { "box-delivery-timestamp": q.time };
    return { ...time, "box-signature-primary": await boxUtils().computeWebhookSignature(q.text, { ...q.headers, ...time }, q.secret, false) };
  },
  coinbase: async (q) => ({ "x-cc-webhook-signature": coinbase().computeSignature(q.text, q.secret) }),
  hubspot: async (q) => ({
    "x-hubspot-request-timestamp": q.time,
    "x-hubspot-signature-v3": hubspot().getSignature(q.method, "v3", { clientSecret: q.secret, requestBody: q.text, url: q.url, timestamp: Number(q.time) }),
  }),
  notion: async (q) => ({ "x-notion-signature": await notion().signWebhookPayload({ body: q.text, verificationToken: q.secret }) }),
  octokit: async (q) => ({ "x-hub-signature-256": await (await octokit()).sign(q.secret, q.text) }),
  sanity: async (q) => ({ "sanity-webhook-signature": await sanity().encodeSignatureHeader(q.text, Number(q.time), q.secret) }),
  "twilio-form": async (q) => ({ "x-twilio-signature": twilio().getExpectedTwilioSignature(q.secret, q.url, fields(q)) }),
  "twilio-json": async (q) => ({ "x-twilio-signature": twilio().getExpectedTwilioSignature(q.secret, q.url, {}) }),
  workos: async (q) => ({ "workos-signature": `t=${q.time}, v1=${await workos().computeSignature(q.time, JSON.parse(q.text), q.secret)}` }),
};

// verifiers tell whether an SDK accepts a delivery.
const verifiers = {
  adyen: async (q) => JSON.parse(q.text).notificationItems.every((i) => adyen().validateHMAC(i.NotificationRequestItem, q.secret)),
  "adyen-platform": async (q) => adyen().validateHMACSignature(q.secret, q.headers.hmacsignature, q.text),
  box: async (q) => box().validateMessage(q.text, q.headers, q.secret),
  coinbase: async (q) => coinbase().verifySigHeader(q.text, q.headers["x-cc-webhook-signature"], q.secret),
  discord: async (q) => discord().verifyKey(q.body, q.headers["x-signature-ed25519"], q.headers["x-signature-timestamp"], q.secret),
  easypost: async (q) => Boolean(easypost().validateWebhook(q.body, q.headers, q.secret)),
  gocardless: async (q) => (gocardless().verifySignature(q.body, q.secret, q.headers["webhook-signature"]), true),
  hubspot: async (q) =>
    hubspot().isValid({
      method: q.method, signatureVersion: "v3", clientSecret: q.secret, requestBody: q.text, url: q.url,
      signature: q.headers["x-hubspot-signature-v3"], timestamp: q.headers["x-hubspot-request-timestamp"],
    }),
  linear: async (q) => {
    const client = new (await linear()).LinearWebhookClient(q.secret);
    return client.verify(q.body, q.headers["linear-signature"], JSON.parse(q.text).webhookTimestamp);
  },
  notion: async (q) => notion().verifyWebhookSignature({ body: q.body, signature: q.headers["x-notion-signature"], verificationToken: q.secret }),
  octokit: async (q) => (await octokit()).verify(q.secret, q.text, q.headers["x-hub-signature-256"]),
  razorpay: async (q) => razorpay().validateWebhookSignature(q.text, q.headers["x-razorpay-signature"], q.secret),
  sanity: async (q) => (await sanity().assertValidRequest({ headers: q.headers, body: q.text }, q.secret), true),
  shopify: async (q) => {
    const { shopifyApi, ApiVersion, LogSeverity } = await shopify();
    const api = shopifyApi({
      apiKey: "none", apiSecretKey: q.secret, hostName: "hooks.example", isEmbeddedApp: false, apiVersion: Object.values(ApiVersion)[0],
      logger: { log: () => {}, level: LogSeverity.Error },
    });
    const rawRequest = { method: "POST", url: "/", headers: q.headers };
    return (await api.webhooks.validate({ rawBody: q.text, rawRequest, rawResponse: {} })).valid;
  },
  square: async (q) =>
    square().verifySignature({ requestBody: q.text, signatureHeader: q.headers["x-square-hmacsha256-signature"], signatureKey: q.secret, notificationUrl: q.url }),
  "twilio-form": async (q) => twilio().validateRequest(q.secret, q.headers["x-twilio-signature"], q.url, fields(q)),
  "twilio-json": async (q) => twilio().validateRequestWithBody(q.secret, q.headers["x-twilio-signature"], q.url, q.text),
  workos: async (q) => workos().verifyHeader({ payload: JSON.parse(q.text), sigHeader: q.headers["workos-signature"], secret: q.secret }),
};

async function answer(q) {
  q.body = Buffer.from(q.body, "base64");
  q.text = q.body.toString("utf8");
  if (q.op === "sign") {
    return { headers: await signers[q.sdk](q) };
  }
  try {
    return { ok: (await verifiers[q.sdk](q)) === true };
  } catch (err) {
    return { ok: false, why: String(err?.message ?? err) };
  }
}

for (const load of loaders) {
  await load();
}
process.stdout.write('{"ready":true}\n');
for await (const line of createInterface({ input: process.stdin })) {
  const q = JSON.parse(line);
  let a;
  try {
    a = await answer(q);
  } catch (err) {
    a = { error: String(err?.stack ?? err) };
  }
  process.stdout.write(JSON.stringify(a) + "\n");
}
