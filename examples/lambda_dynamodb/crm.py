"""A CRM for tests: it opens a case for every request, also for a repeated one, and prints a line for each.

It handles one request at a time, so that lines are not mixed.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from typing import Any

NUMBERS = count(1)


class Crm(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        case = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        opened = {"case": f"case-{next(NUMBERS)}"}
        print(json.dumps({"key": self.headers["Idempotency-Key"], **opened, **case}), flush=True)
        body = json.dumps(opened).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """No access log: the printed lines are enough."""


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Crm).serve_forever()
