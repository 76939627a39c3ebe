// Prints each change of a Stripe subscription. It is a minimal consumer of Postern's change feed
// (docs/reference/feeds.md).
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

// NATS_URL, or else the URL of the dev instance in POSTERN_DIR (default .postern). The client needs
// user and password as separate options.
const instance = () => JSON.parse(readFileSync(join(process.env.POSTERN_DIR ?? ".postern", "instance.json"), "utf8")).nats_url;
const servers = (process.env.NATS_URL ?? instance()).split(",").map((server) => new URL(server));
const connection = await connect({
  servers: servers.map((server) => server.host),
  user: decodeURIComponent(servers[0].username) || undefined,
  pass: decodeURIComponent(servers[0].password) || undefined,
  maxReconnectAttempts: -1,
});

await (await jetstreamManager(connection)).consumers.add("POSTERN_CHANGES", {
  durable_name: "consume-node", filter_subject: "postern.changes.*.subscription", ack_policy: AckPolicy.Explicit,
});
const messages = await (await jetstream(connection).consumers.get("POSTERN_CHANGES", "consume-node")).consume();
process.once("SIGINT", () => messages.close());

// If redacted is set, the state was erased for good, and the consumer must erase its copies.
const act = (change) =>
  console.log(change.redacted
    ? `${change.object_id} was redacted: erase it and everything derived from it (revision ${change.revision})`
    : `${change.object_id} is ${change.state?.status} (deleted ${change.deleted}, revision ${change.revision})`);

// A real consumer stores the revision in the transaction in which act writes its data.
const highest = new Map();
for await (const message of messages) {
  const change = message.json();
  const key = JSON.stringify([change.source, change.account, change.object_id]);
  // A duplicate or an older change is only acknowledged.
  if (change.revision > (highest.get(key) ?? 0)) {
    try {
      await act(change);
    } catch (error) {
      console.error(error);
      message.nak(5000);
      continue;
    }
    highest.set(key, change.revision);
  }
  message.ack();
}
await connection.drain();
