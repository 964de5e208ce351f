"""Events that one gate publishes and another gate receives, on one store, with the AWS emulator."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from oncegate import Event, Gate
from oncegate.sinks import publish
from tests.gate.test_handed_on import ENVELOPE, OTHERS, WRAPPINGS, Effects
from tests.ingress.sqs.queues import Cloud, Queue, working
from tests.service.running import Service
from tests.stores.dynamo_server import REGION
from tests.stores.servers import until

HANDLER = """
def handle(event):
    with open("effects", "a") as file:
        file.write(f"{event.entity or event.id}\\n")
"""


@pytest.fixture
def events(cloud: Cloud) -> Iterator[Any]:
    client = botocore.session.Session().create_client("events", region_name=REGION, endpoint_url=cloud.endpoint)
    yield client
    client.close()


def test_publish_and_work_on_one_store(tmp_path: Path, queue: Queue) -> None:
    """A service that publishes and a worker of that queue share one configuration. Each event has one effect, however
    often and in whatever carrier it arrives, at the service or in the queue. `explain` shows both stages."""
    toml = f'[serve]\npublish = "{queue.source}"\n[work]\nhandler = "app:handle"\nwait = "1s"\n'
    with Service(tmp_path, toml=toml, handler=HANDLER, handled=False) as service:
        worker = subprocess.Popen(
            [sys.executable, "-m", "oncegate", "work", queue.source],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for wrapping in WRAPPINGS:
                assert service.post(wrapping).status_code == 200
            for number in range(20):
                service.post({"id": f"evt-{number}"})
            until(lambda: len(service.effects()) >= 21, "all to take effect")
            for wrapping in WRAPPINGS:
                assert service.post(wrapping).json()["status"] == "duplicate"
            queue.send(ENVELOPE, {"id": "evt-0"}, {"id": "evt-new"}, {"id": "evt-new"})
            queue.until_empty()
            assert service.post({"id": "evt-new"}).json()["status"] == "duplicate"
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=40)
        service.stop()
    assert sorted(service.effects()) == sorted(["c-1", "evt-new", *(f"evt-{number}" for number in range(20))])
    told = subprocess.run(
        [sys.executable, "-m", "oncegate", "explain", "evt-7"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    place = f"sqs://{queue.name}?region={REGION}"
    assert " ".join(told.stdout.split()).startswith(f"Run: evt-7 was published to {place} at ")
    assert "Its consumer processed it " in " ".join(told.stdout.split())


@pytest.mark.parametrize("straight_first", [False, True])
@pytest.mark.parametrize("payload", [OTHERS, {"case": 8}, ENVELOPE], ids=["envelope", "plain", "genesys"])
def test_over_a_bus(
    cloud: Cloud, queue: Queue, events: Any, tmp_path: Path, payload: dict[str, Any], straight_first: bool
) -> None:
    """A bus gives an event a new envelope, and a rule with an InputPath removes it. Both forms find the record of the
    event, and so does a copy that is sent directly to the queue, before or after: one effect."""
    bus, effects = f"bus-{queue.name}", Effects()
    events.create_event_bus(Name=bus)
    events.put_rule(Name="all", EventBusName=bus, EventPattern=json.dumps({"source": ["oncegate"]}))
    targets = [{"Id": "whole", "Arn": queue.arn}, {"Id": "detail", "Arn": queue.arn, "InputPath": "$.detail"}]
    events.put_targets(Rule="all", EventBusName=bus, Targets=targets)
    sink: Any = publish(f"eventbridge://{bus}?region={REGION}&endpoint={cloud.endpoint}")
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate, closing(sink):
        if straight_first:
            queue.send(payload)
        else:
            assert gate.run(payload, sink).status == "processed"
            until(lambda: queue.left() == 2, "both forms of it")
        worker = gate.worker(queue.source, effects, wait="1s")
        with working(worker):
            until(lambda: len(effects) == 1, "it to take effect")
            queue.send(payload)
            queue.until_empty()
            assert gate.run(payload, sink).status == "duplicate"
        assert (len(effects), worker.figures.duplicates) == (1, 1 if straight_first else 2)


def test_a_message_that_arrives_before_its_publisher_has_completed(queue: Queue, tmp_path: Path) -> None:
    """A message that arrives before its publisher has completed the event is held for that moment, and SQS counts no
    further receive."""
    ran: list[int | None] = []

    def handle(event: Event) -> None:
        ran.append(event.evidence.receive_count)

    sink: Any = publish(queue.source)
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate, closing(sink):
        worker = gate.worker(queue.source, handle, wait="1s")

        class Slow:
            publishes_to = sink.publishes_to

            def __call__(self, event: Event) -> None:
                sink(event)
                until(lambda: worker.figures.received == 1, "the worker to be faster")

        with working(worker):
            assert gate.run({"id": "evt-1"}, Slow()).status == "processed"
            until(lambda: bool(ran), "it to take effect", 15)
            queue.until_empty()
    assert ran == [1]
