"""Receive events other than by HTTP: Lambda, queues and the inbox. `open_worker` finds the worker for a queue URL."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.text import quoted

if TYPE_CHECKING:
    from oncegate.gate.handlers import AsyncHandler, Handler
    from oncegate.ingress.worker import Worker, WorkerContext


class _Driver(Struct, frozen=True):
    """What a queue package provides: a check of the URL, a check of the options, and the worker. `open` gets the URL,
    the handler, the checked options and the context."""

    check: Callable[[str], object]
    validate: Callable[..., Any]
    open: "Callable[[str, AsyncHandler | Handler, Any, WorkerContext], Worker]"


def _sqs() -> _Driver:
    from oncegate.ingress.sqs import SqsWorker, read_address, validate

    return _Driver(read_address, validate, SqsWorker)


# A driver is imported when its scheme is first used, so that no process pays for a queue that it does not use. AWS
# shows the URL of an SQS queue as https://…; the URL of an emulator may be http://….
_DRIVERS: Final[dict[str, Callable[[], _Driver]]] = {"sqs": _sqs, "https": _sqs, "http": _sqs}
_USE: Final = "use sqs, as in sqs://NAME?region=eu-central-1"


def open_worker(
    url: str, handler: "AsyncHandler | Handler", options: Mapping[str, Any], context: "WorkerContext"
) -> "Worker":
    """The worker for the queue at a URL. Raises SettingError for an invalid URL or option. No connection is opened
    before the worker runs."""
    driver = _driver(url)
    driver.check(url)
    return driver.open(url, handler, driver.validate(**options), context)


def check_queue(url: str) -> None:
    """Raise SettingError if `open_worker` would reject the URL. Nothing is opened."""
    _driver(url).check(url)


def _driver(url: str) -> _Driver:
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise SettingError(f"{quoted(url)} is not a queue URL; {_USE}")
    if scheme not in _DRIVERS:
        raise SettingError(f"unknown queue scheme {scheme!r}; {_USE}")
    return _DRIVERS[scheme]()
