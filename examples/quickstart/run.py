"""Deliver one event five times, in five wrappings, and see one effect. Everything runs on an emulator of AWS.

The script starts the emulator, creates a table, a queue and a rule with `oncegate infra up`, sends the event, processes
the queue with a worker, and stops everything.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import botocore.session

from oncegate import Event, Gate
from oncegate.gate import Notice

REGION = "eu-central-1"
CONVERSATION = "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10"
TOPIC = "v2.detail.events.conversation"
DETAIL = {
    "topicName": f"{TOPIC}.{CONVERSATION}.customer.end",
    "version": "2",
    "eventBody": {
        "eventTime": 1770091506123,
        "conversationId": CONVERSATION,
        "sessionId": "a7c3e9d4-1b2f-4c68-8e5a-9f0d1c2b3a41",
        "disconnectType": "PEER",
        "mediaType": "VOICE",
    },
    "metadata": {"CorrelationId": "00000000-aaaa-4bbb-8ccc-000000000004"},
    "timestamp": "2026-02-03T04:05:06.383Z",
}
ENVELOPE: dict[str, Any] = {
    "version": "0",
    "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
    "detail-type": f"{TOPIC}.{{id}}.customer.end",
    "source": "aws.partner/genesys.com/cloud/desk",
    "time": "2026-02-03T04:05:06Z",
    "detail": DETAIL,
}


def main() -> None:
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}  # the emulator accepts any
    with TemporaryDirectory() as folder, emulator(Path(folder)) as endpoint:
        infra_up(endpoint)
        send(endpoint)
        effects = work(endpoint)
    print(f"\nFive deliveries, {len(effects)} effect: {', '.join(effects)}.")


@contextmanager
def emulator(folder: Path) -> Iterator[str]:
    """Run an emulator of AWS on a free port. Yields its URL."""
    program = shutil.which("ministack", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        sys.exit("The emulator is not installed: pip install ministack")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program], cwd=folder, env=env, stdout=log, stderr=log)  # noqa: S603  # the emulator
    try:
        wait_for(f"http://127.0.0.1:{port}/_ministack/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str) -> None:
    for _ in range(200):
        try:
            urlopen(url, timeout=2).close()  # noqa: S310  # the emulator's
        except (URLError, OSError):
            time.sleep(0.1)
        else:
            return
    sys.exit(f"{url} does not answer")


def infra_up(endpoint: str) -> None:
    """Run `oncegate infra up --name quickstart …`."""
    pattern = json.dumps({"detail-type": [{"prefix": "v2."}]})
    command = ["infra", "up", "--name", "quickstart", "--pattern", pattern, "--region", REGION, "--endpoint", endpoint]
    subprocess.run([sys.executable, "-m", "oncegate", *command], check=True)  # noqa: S603  # ourselves


def client(service: str, endpoint: str) -> Any:
    return botocore.session.get_session().create_client(service, region_name=REGION, endpoint_url=endpoint)


def send(endpoint: str) -> None:
    """Send the event five times: twice through the bus, which creates a new envelope each time, and three times
    directly to the queue, in the forms that other routes would deliver."""
    bus, sqs = client("events", endpoint), client("sqs", endpoint)
    queue = sqs.get_queue_url(QueueName="quickstart-events")["QueueUrl"]
    entry = {"Source": "desk", "DetailType": ENVELOPE["detail-type"], "Detail": json.dumps(DETAIL)}
    notification = {"Type": "Notification", "MessageId": "m-1", "TopicArn": "arn:aws:sns:x:1:desk"}
    print()
    for what in ("put on the bus", "put on the bus again, so with another id"):
        bus.put_events(Entries=[entry])
        print(f"sent: {what}")
    for what, body in {
        "in an SNS notification": notification | {"Message": json.dumps(ENVELOPE)},
        "its detail alone, as an input path leaves it": DETAIL,
        "replayed from an archive": ENVELOPE | {"replay-name": "backfill"},
    }.items():
        sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(body))
        print(f"sent: {what}")


def work(endpoint: str) -> list[str]:
    """Process five deliveries. Returns the effects."""
    effects: list[str] = []
    taken = threading.Semaphore(0)

    def open_case(event: Event) -> None:
        effects.append(f"a case for conversation {event.entity}")

    def show(notice: Notice) -> None:
        outcome = notice.outcome
        if outcome is None or notice.name != f"event.{outcome.status}":
            return
        print(f"{outcome.status.ljust(9)}  {(outcome.kind or 'the first').ljust(11)}  {outcome.reason}")
        if outcome.acked:
            taken.release()

    print()
    place = f"region={REGION}&endpoint={endpoint}"
    gate = Gate(f"dynamodb://quickstart-claims?{place}", observers=[show], breaker="5s")
    worker = gate.worker(f"sqs://quickstart-events?{place}", open_case, wait="1s")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for _ in range(5):
            taken.acquire(timeout=60)
    finally:
        worker.stop()
        thread.join()
        gate.close()
    return effects


if __name__ == "__main__":
    main()
