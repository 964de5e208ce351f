"""The guide to signatures is true: its code runs, its table is complete, and it says what is refused."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from oncegate import signatures
from oncegate.signatures.senders import SENDERS
from tests.test_guide import DOCS

PAGE = DOCS / "guide" / "signatures.md"
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)

# FastAPI is no dependency of the tests. Of it, the page uses three names, which have this shape there.
FASTAPI = """
class FastAPI:
    def post(self, path):
        return lambda function: function

class Request:
    pass

class Response:
    def __init__(self, content=None, status_code=200, headers=None):
        self.body, self.status_code, self.headers = content, status_code, headers
"""
ASKED = """
import asyncio, base64, json
from hmac import digest as hmac_digest
from types import SimpleNamespace

def ask(secret, signed, sent):
    signature = "sha256=" + base64.b64encode(hmac_digest(secret.encode(), signed, "sha256")).decode()
    return {"X-Hub-Signature-256": signature}, sent
"""
OVER_ASGI = """
def post(headers, sent):
    async def body():
        return sent
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    response = asyncio.run(receive(SimpleNamespace(body=body, headers=SimpleNamespace(raw=raw))))
    answer = json.loads(response.body)
    print(response.status_code, answer.get("detail", answer["status"]))
"""
OVER_LAMBDA = """
def post(headers, sent):
    request = {"httpMethod": "POST", "requestContext": {}, "headers": headers, "body": sent.decode()}
    response = handler(request, None)
    answer = json.loads(response["body"])
    print(response["statusCode"], answer.get("detail", answer["status"]))
"""
POSTED = """
event = b'{"id": "evt-1", "type": "Text"}'
post(*ask("support-example-secret", event, event))
post(*ask("support-example-secret", event, event))
post(*ask("support-example-secret", event, event + b" "))
post(*ask("sales-example-secret", event, event))
"""
UNKNOWN = "401 the signature in x-hub-signature-256 matches no secret"


def run(code: str, folder: Path) -> list[str]:
    environ = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "SUPPORT_SECRET": "support-example-secret",
        "SALES_SECRET": "sales-example-secret",
        "ONCEGATE_STORE": "memory://",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("{")]


def test_plain_python(tmp_path: Path) -> None:
    """What is shown to be printed is printed."""
    shown = re.search(r"```\n\n((?: {4}.+\n)+)", PAGE.read_text())
    assert shown
    code = "\n".join(block for block in BLOCKS if "os.environ" not in block)
    *first, slack = run(code, tmp_path)
    assert first == textwrap.dedent(shown[1]).splitlines()
    assert slack == "<Verifier hmac, secrets: 0>"


def test_fastapi(tmp_path: Path) -> None:
    """What is genuine runs once for each sender, each in its own namespace; what is forged does not."""
    (tmp_path / "fastapi.py").write_text(FASTAPI)
    (block,) = (block for block in BLOCKS if "fastapi" in block)
    answers = run(block + ASKED + OVER_ASGI + POSTED, tmp_path)
    assert answers == ["200 processed", "200 duplicate", UNKNOWN, "200 processed"]


def test_lambda(tmp_path: Path) -> None:
    """A function refuses what is not signed with its secret."""
    (block,) = (block for block in BLOCKS if "lambda_handler" in block)
    answers = run(block + ASKED + OVER_LAMBDA + POSTED, tmp_path)
    assert answers == ["200 processed", "200 duplicate", UNKNOWN, UNKNOWN]


def test_every_sender_has_its_row() -> None:
    """The table has each name of settings, and the function that makes the same."""
    rows = dict(re.findall(r"^\| .+? \| `(\w+)` \| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE))
    assert {name: getattr(signatures, function) for function, name in rows.items()} == {
        name: maker for name, (maker, _) in SENDERS.items()
    }
    assert all(f"`{option}" in PAGE.read_text() for _, options in SENDERS.values() for option in options)
