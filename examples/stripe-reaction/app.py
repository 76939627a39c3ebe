"""A small web application that acts once on each change of a subscription. It needs only Python 3.9.

APP_SIGNING_SECRET  the signing_secret of the destination
APP_DATABASE        file of the SQLite database (default: app.db)
APP_PORT            port on 127.0.0.1 (default: a free one)
APP_LOSES           number of responses to lose after acting, as a test (default: 0)
"""
import base64
import hashlib
import hmac
import json
import os
import sqlite3
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

KEY = base64.b64decode(os.environ["APP_SIGNING_SECRET"].removeprefix("whsec_"))
TOLERANCE = 300  # seconds
MAX_BODY = 1 << 20  # bytes

database = sqlite3.connect(os.environ.get("APP_DATABASE", "app.db"))
database.execute("CREATE TABLE IF NOT EXISTS seen (webhook_id text PRIMARY KEY)")
database.execute("CREATE TABLE IF NOT EXISTS actions (webhook_id text, subscription text, status text)")
loses = int(os.environ.get("APP_LOSES", "0"))


def verify(headers, body):
    """Check a signature of Standard Webhooks: HMAC-SHA256 over id.timestamp.body.

    The header contains one or more signatures.
    """
    name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdecimal() or abs(time.time() - int(at)) > TOLERANCE:
        return False
    want = base64.b64encode(hmac.digest(KEY, f"{name}.{at}.".encode() + body, hashlib.sha256)).decode()
    signatures = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(want.encode(), s.removeprefix("v1,").encode()) for s in signatures if s.startswith("v1,"))


def act(webhook_id, change):
    """Act on a change once. The action and the id of its webhook are committed in one transaction."""
    subscription = change["data"]["new"]
    with database:
        if database.execute("INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING", (webhook_id,)).rowcount == 0:
            print(f"seen before: {webhook_id}", flush=True)
            return
        database.execute("INSERT INTO actions VALUES (?, ?, ?)", (webhook_id, subscription["id"], subscription["status"]))
    print(f"acted: {subscription['id']} is {subscription['status']}", flush=True)


class App(BaseHTTPRequestHandler):
    def do_POST(self):
        global loses
        body = self.rfile.read(min(int(self.headers.get("Content-Length", "0")), MAX_BODY))
        if not verify(self.headers, body):
            self.respond(401)
            return
        act(self.headers["webhook-id"], json.loads(body))
        if loses > 0:
            loses -= 1
            return  # the connection ends without a response
        self.respond(204)

    def respond(self, status):
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", int(os.environ.get("APP_PORT", "0"))), App)
print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
