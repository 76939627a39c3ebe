// Does something whenever a Stripe subscription changes: the smallest consumer of Postern's change feed (docs/feeds.md).
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

// NATS_URL, else that of the dev instance in POSTERN_DIR (default .postern). The client takes user and password apart from the URL.
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

const act = (change) =>
  console.log(`${change.object_id} is ${change.state?.status} (deleted ${change.deleted}, revision ${change.revision})`);

const highest = new Map(); // a real consumer keeps this beside what act writes, in the same transaction
for await (const message of messages) {
  const change = message.json();
  const key = JSON.stringify([change.source, change.account, change.object_id]);
  if (change.revision > (highest.get(key) ?? 0)) { // else a repeat, or older than what was acted upon: only acknowledged
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
