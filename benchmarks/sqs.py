"""A worker of an SQS queue against a bare loop that receives and deletes, with as many polls open at a time.

The queue is the emulator's, which takes most of the time of both, on cores that it shares with them. The gate is on a
Redis server that this run starts.
"""

import json
import os
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3  # type: ignore[import-untyped]  # has no types

from benchmarks.measure import Sizes, by_turns, median
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate import Event, Gate
from tests.ingress.sqs.queues import Cloud, Queue, working
from tests.stores.dynamo_server import CREDENTIALS, REGION
from tests.stores.redis_server import RedisServer

_POLLS: Final = 4
_PATIENCE: Final = 120.0


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    progress.stage("SQS, a worker")
    os.environ.update(CREDENTIALS)
    server = RedisServer(folder / "claims")
    cloud = Cloud(folder / "cloud")
    try:
        events = sizes.sqs_events
        turns = {"ours": partial(_worker_turn, cloud, server.url, events), "bare": partial(_bare_turn, cloud, events)}
        rounds = by_turns(turns, min(sizes.rounds, 7), sizes.warm_ups, progress)
    finally:
        cloud.stop()
        server.stop()
    return [
        Row(
            "SQS worker on Redis, new events",
            "events/s",
            median(rounds, lambda took: events / took["ours"]),
            median(rounds, lambda took: events / took["bare"]),
            "receive and delete",
            median(rounds, lambda took: took["bare"] / took["ours"]),
            Aim("at least", 0.8),
        )
    ]


def _filled(cloud: Cloud, events: int) -> Queue:
    queue = cloud.queue()
    queue.send_all([{"id": f"{queue.name}-{number}", "type": "call.ended"} for number in range(events)])
    return queue


def _worker_turn(cloud: Cloud, store: str, events: int) -> float:
    queue = _filled(cloud, events)
    with closing(Gate(store)) as gate:
        worker = gate.worker(queue.source, _nothing, wait="1s", receivers=_POLLS)
        start = time.perf_counter()
        with working(worker):
            queue.until_empty(_PATIENCE)
            return time.perf_counter() - start


async def _nothing(event: Event) -> None:
    """That there is no effect leaves all the time to what is measured."""


def _bare_turn(cloud: Cloud, events: int) -> float:
    queue = _filled(cloud, events)
    start = time.perf_counter()
    with closing(boto3.client("sqs", region_name=REGION, endpoint_url=cloud.endpoint)) as client:
        loops = [threading.Thread(target=_bare_loop, args=(client, queue.url)) for _ in range(_POLLS)]
        for loop in loops:
            loop.start()
        queue.until_empty(_PATIENCE)
        seconds = time.perf_counter() - start
        for loop in loops:
            loop.join()
    return seconds


def _bare_loop(client: Any, url: str) -> None:
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages"):
        for message in messages:
            json.loads(message["Body"])
        entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
