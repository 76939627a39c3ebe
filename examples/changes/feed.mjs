// Keeps a copy of the mirror's states in the file that the argument names.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const [file, { POSTERN_URL: url, POSTERN_TOKEN: token }] = [process.argv[2], process.env];
const empty = () => ({ cursor: "", objects: {} });
let own = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : empty();

for (;;) {
  let response, found;
  try {
    response = await fetch(`${url}/api/v1/changes?wait=30s&after=${own.cursor}`, {
      headers: { Authorization: `Bearer ${token}` },
    });
    found = await response.json();
  } catch (error) {
    console.error(error.message); // Postern does not respond
    await sleep(1000);
    continue;
  }
  if (response.status === 410) {
    own = empty(); // the mirror was restored to an earlier state: start again
  } else if (!response.ok) {
    console.error(response.status, found.detail); // such as 401: the token is wrong
    await sleep(1000);
  } else {
    for (const c of found.items) {
      const key = [c.source, c.account, c.object_type, c.object_id].join(" ");
      own.objects[key] = c.state; // null if it was redacted: the copy loses it too
      if (c.deleted) delete own.objects[key];
    }
    own.cursor = found.next_cursor; // stored with the states: after a kill nothing is missing
    writeFileSync(`${file}.new`, JSON.stringify(own));
    renameSync(`${file}.new`, file);
  }
}
