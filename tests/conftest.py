"""Set-up for all tests."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ingress.rabbit_server import Rabbit

# A shell starts a background job without job control, such as `make test &` in a script, with SIGINT ignored. Programs
# that the tests start would inherit this, and Ctrl-C would not end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Rabbit]":
    """A RabbitMQ server, the same in all test processes of this run."""
    from tests.ingress.rabbit_server import shared

    folder = tmp_path_factory.getbasetemp()
    with shared((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "rabbitmq") as rabbit:
        yield rabbit
