// Receives the changes that Postern forwards (docs/how-to/receive-changes-by-webhook.md).
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const key = Buffer.from((process.env.FORWARD_SECRET ?? "").replace(/^whsec_/, ""), "base64");
if (key.length < 24) throw new Error("FORWARD_SECRET is not a secret of Standard Webhooks");

// verify checks that a message is signed (Standard Webhooks) and at most five minutes old.
function verify(headers, body) {
  const at = Number(headers["webhook-timestamp"]);
  if (!(Math.abs(Date.now() / 1000 - at) <= 300)) return false;
  const want = createHmac("sha256", key).update(`${headers["webhook-id"]}.${at}.`).update(body).digest();
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => { // one for each secret
    const got = Buffer.from(signature.replace(/^v1,/, ""), "base64");
    return signature.startsWith("v1,") && got.length === want.length && timingSafeEqual(got, want);
  });
}

const highest = new Map(); // store it with your data, in the same transaction
function receive(change) {
  const object = JSON.stringify([change.source, change.account, change.object_type, change.object_id]);
  if (change.revision <= (highest.get(object) ?? 0)) return; // a repetition, or older than what is known
  console.log(change.redacted ? "erase" : "store", change.object_type, change.object_id, "revision", change.revision);
  highest.set(object, change.revision);
}

const server = createServer(async (request, response) => {
  try {
    const parts = [];
    let size = 0;
    for await (const part of request) {
      if ((size += part.length) > 1 << 20) return response.writeHead(413, { connection: "close" }).end();
      parts.push(part);
    }
    const body = Buffer.concat(parts); // the signature is of these bytes, not of the parsed JSON
    if (!verify(request.headers, body)) return response.writeHead(401).end();
    receive(JSON.parse(body));
    response.writeHead(204).end();
  } catch (error) { // also a sender that disconnects
    console.error(error.message);
    response.writeHead(500).end(); // Postern sends it again
  }
});
const [host, port] = (process.env.LISTEN ?? "127.0.0.1:0").split(":");
server.listen(Number(port), host, () => console.log(`listening on http://${host}:${server.address().port}`));
