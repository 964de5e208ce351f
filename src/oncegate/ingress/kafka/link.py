"""The link of a worker to a consumer group.

The client of Kafka runs in one thread, which polls all the time: a member that does not poll loses its partitions. All
other code here runs in the event loop of the worker. During a poll, the client calls `_assigned`, `_revoked` and
`_lost`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from oncegate.buses.kafka import client_config, error_of, error_text
from oncegate.clocks import wall
from oncegate.errors import MissingExtra, QueueError
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.kafka.address import GroupAddress
from oncegate.ingress.kafka.messages import KafkaMessage, Partition
from oncegate.ingress.messages import Message
from oncegate.ingress.options import QueueOptions
from oncegate.ingress.queue_worker import LinkContext
from oncegate.ingress.supervision import OutageLogger

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
    from confluent_kafka import Message as Record
except ImportError as _error:
    raise MissingExtra("a worker of a Kafka topic", "kafka") from _error

_log: Final = logging.getLogger("oncegate.work")
_R = TypeVar("_R")
# All times are in seconds.
_POLL: Final = 0.2
_COMMIT_EVERY: Final = 0.2
_FULL_FOR: Final = 0.5  # how long the worker waits for room before it pauses the partitions
_OPEN_WITHIN: Final = 10.0
_ANSWER_WITHIN: Final = 1.0
_CLOSE_WITHIN: Final = 5.0
_CHECK_RUNNING: Final = 0.02
_REVOKE_COMMITS: Final = 5  # attempts
_REVOKE_PAUSE: Final = 0.2
_LONGEST_POLL_PAUSE: Final = 300
_METADATA_EVERY: Final = 30  # how soon a new partition or a deleted topic is noticed
_NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_REFUSED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow its user to read the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "allow its user to read the group",
    KafkaError.INVALID_SESSION_TIMEOUT: "change the option visibility; brokers allow 6s to 30m by default",
}


class KafkaLink:
    """Implements `oncegate.ingress.queue_worker.QueueLink`."""

    in_groups = False
    has_dead_letters = False
    longest_pause = 12 * 3_600.0

    def __init__(self, address: GroupAddress, options: QueueOptions, context: LinkContext) -> None:
        self._address = address
        self._options = options
        self._context = context
        self._outage = OutageLogger(context.boot)
        self._threads = CallThreads("oncegate-kafka-group", 1)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._receives = self._has_joined = False
        self._committed_at = 0.0
        # Used by the thread only.
        self._consumer: Consumer | None = None
        self._paused: set[str] = set()
        self._last_error = ""
        # Set by the thread: whether the brokers may be away.
        self._is_suspect = False

    # ── the client, in its thread ─────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Connect, and join the group."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._threads.call(self._join)
        except KafkaException as error:
            reason = self._last_error or error_text(error_of(error))
            raise QueueError(
                f"{self._address.place} cannot be used at {self._address.at.brokers}: {reason}; check that the brokers"
                " run, and the addresses and the user in the URL"
            ) from error
        self._has_joined = True

    def _join(self) -> None:
        self._consumer = Consumer(
            consumer_config(self._address, self._options) | {"error_cb": self._note, "on_commit": self._commit_answered}
        )
        try:
            for topic in self._address.topics:
                self._check_topic(topic, _OPEN_WITHIN)
        except KafkaException:
            self._consumer.poll(0)  # calls `_note`, which knows the reason
            raise
        self._consumer.subscribe(
            self._address.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _check_topic(self, topic: str, within: float) -> None:
        """Raise QueueError if the topic does not exist, and KafkaException if no broker answers."""
        assert self._consumer is not None  # noqa: S101  # the worker has joined
        error = self._consumer.list_topics(topic, within).topics[topic].error
        if error is not None and error.code() in _NO_TOPIC:
            raise QueueError(f"the Kafka topic {topic} does not exist; create it first")
        if error is not None:
            self._raise_if_refused(error)

    def _raise_if_refused(self, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            raise QueueError(f"{self._address.place} cannot be used: {error_text(error)}; {_REFUSED[error.code()]}")

    def _note(self, error: KafkaError) -> None:
        self._last_error = error_text(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_suspect = True

    def _poll(self, most: int, paused: set[str], commits: Sequence[TopicPartition]) -> list[Record]:
        """Send commits, and wait a short time for messages. The topics in `paused` deliver none."""
        consumer = self._consumer
        assert consumer is not None  # noqa: S101  # the worker has joined
        if commits:
            with suppress(KafkaException):  # `_commit_answered` is called with the error, or the group is left
                consumer.commit(offsets=list(commits), asynchronous=True)
        if paused != self._paused:
            self._pause(consumer, paused)
        first = consumer.poll(_POLL)
        return [] if first is None else [first, *(consumer.consume(most - 1, 0) if most > 1 else [])]

    def _pause(self, consumer: Consumer, paused: set[str]) -> None:
        assigned = consumer.assignment()
        consumer.pause([each for each in assigned if each.topic in paused])
        consumer.resume([each for each in assigned if each.topic not in paused])
        self._paused = paused

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._paused = set()  # a new partition is not paused
        self._in_loop(lambda: self._add(partitions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Wait until the handlers of these partitions have ended, and commit, before another worker gets them."""
        commits = asyncio.run_coroutine_threadsafe(self._finish(partitions), self._loop).result()
        for left in reversed(range(_REVOKE_COMMITS if commits else 0)):
            try:
                consumer.commit(offsets=commits, asynchronous=False)
            except KafkaException as error:  # for a moment in each rebalance, Kafka takes no commits
                if left:
                    time.sleep(_REVOKE_PAUSE)
                    continue
                why = error_text(error_of(error))
                _log.warning("offsets of revoked partitions were not committed (%s); their events are duplicates", why)
            break

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Another worker may have these partitions already, so nothing is committed."""
        self._in_loop(lambda: self._remove(partitions))

    def _commit_answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._loop.call_soon_threadsafe(self._note_commit, error, partitions)

    def _in_loop(self, call: Callable[[], _R]) -> _R:
        async def called() -> _R:
            return call()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result()

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────

    async def receive(self, stopping: asyncio.Event) -> None:
        self._receives = True
        await stopping.wait()
        self._receives = False

    async def hold(self) -> None:
        """Poll until this coroutine is cancelled, also while no messages are received. So the worker keeps its
        partitions while its handlers run."""
        try:
            while True:
                room = await self._room()
                for record in await self._threads.call(self._poll, room, self._paused_topics(room), self._commits()):
                    await self._take(record)
                await self._check_brokers()
        except KafkaException as error:  # only an error that ends the client is raised here
            raise QueueError(f"{self._address.place} cannot be used: {error_text(error_of(error))}") from error

    async def _room(self) -> int:
        """The number of messages to receive now. Waits a short time if there is no room."""
        dispatcher = self._context.dispatcher
        if not self._receives or self._context.store_outage.pause:
            return 0
        if not dispatcher.room:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FULL_FOR):
                    await dispatcher.room_for(1)
        return min(self._options.batch, dispatcher.room) if self._receives else 0

    def _paused_topics(self, room: int) -> set[str]:
        """All topics if there is no room. Messages of the retry topic wait here for their time, so it is paused when
        they take half of the room."""
        if not room:
            return set(self._address.topics)
        retry_topic = self._address.retry_topic
        is_crowded = 2 * self._context.dispatcher.held_items > self._options.in_hand
        return {retry_topic} if is_crowded and retry_topic not in (None, self._address.at.topic) else set()

    async def _take(self, record: Record) -> None:
        if (error := record.error()) is not None:
            await self._check(error)
            return
        partition = self._partitions.get((record.topic() or "", record.partition() or 0))
        if partition is None:  # it was revoked in the same poll
            return
        message = partition.take(record, self._pause_after)
        if message is None:
            return
        if record.topic() == self._address.retry_topic:
            message.starts_at = self._context.boot() + max(0, message.not_before * 1_000 - wall())
        self._outage.succeeded(f"{self._address.place} answers")
        self._context.take(message, message.content)

    def _pause_after(self, attempt: int) -> float:
        return self._context.config.pause_after(attempt) / 1e6

    async def _check(self, error: KafkaError) -> None:
        """Raise QueueError if an error of the group is permanent. librdkafka retries all other errors itself."""
        self._raise_if_refused(error)
        if error.code() in _NO_TOPIC:
            with suppress(KafkaException):
                for topic in self._address.topics:
                    await self._threads.call(self._check_topic, topic, _ANSWER_WITHIN)
        elif not error.retriable():
            _log.warning("%s: %s", self._address.place, error_text(error))

    async def _check_brokers(self) -> None:
        """If all connections are lost, ask whether the brokers are away, until they answer."""
        if not self._is_suspect or self._outage.pause:
            return
        try:
            await self._threads.call(self._check_topic, self._address.at.topic, _ANSWER_WITHIN)
        except KafkaException:
            self._outage.failed(f"the Kafka brokers at {self._address.at.brokers} do not answer")
        else:
            self._is_suspect = False
            self._outage.succeeded(f"{self._address.place} answers")

    # ── partitions and offsets ────────────────────────────────────────────────────────────────────────────

    def _add(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._partitions[each.topic, each.partition] = Partition(each.topic, each.partition)

    def _remove(self, partitions: Sequence[TopicPartition]) -> list[Partition]:
        found = [self._partitions.pop((each.topic, each.partition), None) for each in partitions]
        removed = [partition for partition in found if partition is not None]
        for partition in removed:
            partition.is_assigned = False
        return removed

    async def _finish(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Start no more events of these partitions, and wait for those that run, for at most the drain time. Returns
        the offsets to commit."""
        removed, deadline = self._remove(partitions), time.monotonic() + self._options.drain
        while any(partition.is_running for partition in removed) and time.monotonic() < deadline:
            await asyncio.sleep(_CHECK_RUNNING)
        return [
            partition.at(position)
            for partition in removed
            if (position := partition.position) is not None and position != partition.committed
        ]

    def _commits(self) -> list[TopicPartition]:
        """The offsets to commit now."""
        now = time.monotonic()
        if now - self._committed_at < _COMMIT_EVERY:
            return []
        self._committed_at = now
        changed = [each for each in self._partitions.values() if each.position not in (None, each.sent)]
        for partition in changed:
            partition.sent = partition.position
        return [partition.at(partition.sent) for partition in changed if partition.sent is not None]

    def _note_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """Record the answer to a commit. A commit that has failed is sent again, as long as the partition is ours."""
        for each in partitions:
            partition = self._partitions.get((each.topic, each.partition))
            if partition is not None and (error or each.error) is not None:
                partition.sent = None
            elif partition is not None:
                partition.committed = each.offset

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────

    def end(self, message: Message) -> None:
        """A message that is not acknowledged stays unfinished. Nothing behind it is committed, so the next owner of its
        partition receives it."""
        assert isinstance(message, KafkaMessage)  # noqa: S101  # the link has made it
        if message.again_after is None:
            message.partition.finish(message)

    async def end_receiving(self, receiving: asyncio.Task[None]) -> None:
        await asyncio.wait([receiving])

    async def flush(self, within: float) -> None:
        """Wait until `hold` has committed everything."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and any(
            partition.position != partition.committed for partition in self._partitions.values()
        ):
            await asyncio.sleep(_CHECK_RUNNING)

    async def close(self) -> None:
        """Leave the group, so that other workers get the partitions at once."""
        closing = asyncio.create_task(self._threads.call(self._leave))
        # If the brokers do not answer, the thread may be busy for as long as `open` waits.
        await asyncio.wait([closing], timeout=_CLOSE_WITHIN if self._has_joined else 0)
        self._threads.close()

    def _leave(self) -> None:
        if self._consumer is not None:
            with suppress(KafkaException):
                self._consumer.close()


def consumer_config(address: GroupAddress, options: QueueOptions) -> dict[str, Any]:
    session = options.visibility
    return client_config(address.at) | {
        "group.id": address.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Not "latest": a worker that received nothing has committed nothing, so the next one would miss events.
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session * 1_000,
        "heartbeat.interval.ms": session * 1_000 // 10,
        "max.poll.interval.ms": int(max(_LONGEST_POLL_PAUSE, session, 2 * options.drain)) * 1_000,
        "topic.metadata.refresh.interval.ms": _METADATA_EVERY * 1_000,
        "queued.max.messages.kbytes": 16_384,
    }
