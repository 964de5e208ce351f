"""Servers with old places, and the command line."""

from tests.cli.conftest import oncegate
from tests.ingress.sqs.conftest import credentials, queue, short_last_poll

__all__ = ["credentials", "oncegate", "queue", "short_last_poll"]
