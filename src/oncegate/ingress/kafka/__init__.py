"""The worker of a Kafka consumer group.

Kafka counts neither attempts nor messages: it only stores, for each partition, the offset up to which everything is
processed. So this worker runs failed events again itself (`ingress/retries.py`), and an event becomes a dead letter of
the gate after `max_attempts`.
"""

from datetime import timedelta

from oncegate.errors import SettingError
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.ingress.kafka.address import GroupAddress, read_group
from oncegate.ingress.kafka.link import KafkaLink
from oncegate.ingress.kafka.retry_topic import TopicMover
from oncegate.ingress.options import QueueOptions
from oncegate.ingress.queue_worker import LinkContext, QueueWorker
from oncegate.ingress.retries import InboxMover, Mover, NoMover
from oncegate.ingress.worker import Worker, WorkerContext

_INBOX_SHARE = 4  # the inbox runs a quarter of the events that may be in flight, beside those of the topic

__all__ = ["kafka_worker", "read_group"]


def kafka_worker(url: str, handler: AsyncHandler | Handler, options: QueueOptions, context: WorkerContext) -> Worker:
    address = read_group(url)

    def open_link(link_context: LinkContext) -> KafkaLink:
        return KafkaLink(address, options, link_context)

    return QueueWorker(
        open_link,
        handler,
        context,
        in_hand=options.in_hand,
        drain=options.drain,
        mover=_mover(address, handler, options, context),
    )


def _mover(
    address: GroupAddress, handler: AsyncHandler | Handler, options: QueueOptions, context: WorkerContext
) -> Mover:
    if address.retry_topic is not None:
        return TopicMover(address, address.retry_topic)
    if context.inbox is not None:
        limit = max(1, options.in_hand // _INBOX_SHARE)
        inbox = context.inbox(handler, at_work=limit, drain=timedelta(seconds=options.drain))
        return InboxMover(inbox, context, address.at.canonical)
    if context.engine.config.marks_first:
        return NoMover()
    raise SettingError(
        "a Kafka worker moves events that fail repeatedly, so that their partition goes on; use a store with an inbox"
        " (sqlite:///oncegate.db or postgresql://…), or add retry_topic=NAME to the URL"
    )
