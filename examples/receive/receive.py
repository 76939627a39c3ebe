"""Receives the changes that Postern forwards (docs/how-to/receive-changes-by-webhook.md)."""
import base64
import hmac
import json
import os
import sqlite3
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

KEY = base64.b64decode(os.environ.get("FORWARD_SECRET", "").removeprefix("whsec_"))
if len(KEY) < 24:
    raise SystemExit("FORWARD_SECRET is not a secret of Standard Webhooks")
database = sqlite3.connect(os.environ.get("RECEIVER_DATABASE", "changes.db"))
database.execute("""CREATE TABLE IF NOT EXISTS objects (source, account, type, id, revision, state,
    PRIMARY KEY (source, account, type, id))""")
STORE = """INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
    SET revision = excluded.revision, state = excluded.state WHERE excluded.revision > objects.revision"""


def verify(headers, body):
    """Check that a message is signed (Standard Webhooks) and at most five minutes old."""
    name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdecimal() or abs(time.time() - int(at)) > 300:
        return False
    want = b"v1," + base64.b64encode(hmac.digest(KEY, f"{name}.{at}.".encode() + body, "sha256"))
    signatures = headers.get("webhook-signature", "").split()  # one for each secret
    return any(hmac.compare_digest(want, signature.encode()) for signature in signatures)


class Receiver(BaseHTTPRequestHandler):
    timeout = 30  # a sender that stops in the middle of a message must not stop the others

    def do_POST(self):
        length = self.headers.get("content-length", "0")
        body = self.rfile.read(min(int(length), 1 << 20) if length.isdecimal() else 0)
        valid = verify(self.headers, body)
        if valid:
            c = json.loads(body)  # in one transaction: the state, and the highest revision
            with database:
                new = database.execute(STORE, (c["source"], c["account"], c["object_type"], c["object_id"],
                                               c["revision"], json.dumps(c["state"]))).rowcount
            if new:
                print("erase" if c.get("redacted") else "store", c["object_type"], c["object_id"], "revision",
                      c["revision"], flush=True)
        self.send_response(204 if valid else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


host, port = os.environ.get("LISTEN", "127.0.0.1:0").split(":")
server = HTTPServer((host, int(port)), Receiver)
print(f"listening on http://{host}:{server.server_port}", flush=True)
server.serve_forever()
