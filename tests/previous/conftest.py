"""Servers with old places, and the command line."""

from tests.cli.conftest import oncegate
from tests.ingress.sqs.conftest import cloud, credentials, queue, short_last_poll
from tests.stores.conftest import dynamo_server, postgres, redis_cluster, redis_server

__all__ = [
    "cloud",
    "credentials",
    "dynamo_server",
    "oncegate",
    "postgres",
    "queue",
    "redis_cluster",
    "redis_server",
    "short_last_poll",
]
