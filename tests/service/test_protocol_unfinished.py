"""Unfinished requests of clients without a secret: signed requests are answered all the same."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.service.apps import signed
from tests.service.floods import UnfinishedBodies
from tests.service.running import Service
from tests.signatures.sending import whsec

TOML = '[serve]\nmode = "inline"\n[route.crm]\nsignature = "standard-webhooks"\nsecret_env = "CRM_SECRET"\n'
ATTACKERS = 76


def codes_during_attack(service: Service, size: int, rate: int, requests: int) -> Counter[int]:
    """The response codes to signed requests of 2 kB, while unsigned clients hold as many bytes as they can."""
    codes: Counter[int] = Counter()
    with UnfinishedBodies(service.connect, ATTACKERS, size, rate) as attack:
        assert attack.filled.wait(60)
        for number in range(requests):
            body = json.dumps({"id": f"evt-{number}", "text": "x" * 2_000}).encode()
            codes[service.post(body, "/events/crm", headers=signed(whsec(1), body)).status_code] += 1
    return codes


def resident(service: Service) -> int:
    """The resident memory of the service in megabytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def test_unfinished_bodies(tmp_path: Path) -> None:
    """Unfinished bodies of unsigned clients do not use the space of signed requests; the oldest get 408."""
    options = ("--max-body", "20000", "--max-bytes-in-hand", "1000000", "--max-bytes-arriving", "400000")
    with Service(tmp_path, *options, toml=TOML, environ={"CRM_SECRET": whsec(1)}) as service:
        assert codes_during_attack(service, 1_000_000 // ATTACKERS, 10**9, 100) == {200: 100}
        assert "(serve.max_bytes_arriving): rejecting the oldest" in service.stderr()


@pytest.mark.long
def test_unfinished_bodies_with_default_limits(tmp_path: Path) -> None:
    """The same with the default limits, at 8 MB/s."""
    with Service(tmp_path, toml=TOML, environ={"CRM_SECRET": whsec(1)}) as service:
        codes = codes_during_attack(service, 64 * 1024 * 1024 // ATTACKERS, 8_000_000, 196)
        assert codes[200] >= 0.99 * codes.total()
        assert resident(service) < 150


def test_oldest_is_rejected_first(tmp_path: Path) -> None:
    """The unfinished request that began first is rejected; a later one is accepted when it completes."""
    options = ("--max-body", "1000", "--max-bytes-arriving", "4000", "--serve-mode", "inline")
    event = b'{"id": "evt-1", "text": "%s"}' % (b"x" * 900)
    head = b"POST /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(event)
    with Service(tmp_path, *options) as service:
        begun = [service.connect() for _ in range(5)]
        for connection in begun:
            connection.sendall(head + event[:-1])
        assert begun[0].recv(65536).startswith(b"HTTP/1.1 408 Request Timeout")
        begun[-1].sendall(event[-1:])
        assert begun[-1].recv(65536).startswith(b"HTTP/1.1 200")
        for connection in begun:
            connection.close()
