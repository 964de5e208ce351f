"""This package receives events from Lambda, from queues and from the inbox. `open_worker` creates the worker for a
queue URL."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.text import quoted

if TYPE_CHECKING:
    from oncegate.gate.handlers import AsyncHandler, Handler
    from oncegate.ingress.worker import Worker, WorkerContext


class _Driver(Struct, frozen=True):
    """The functions that a queue package provides. `check` checks the URL, and `validate` checks the options. `open`
    takes the URL, the handler, the checked options and the context, and creates the worker."""

    check: Callable[[str], object]
    validate: Callable[..., Any]
    open: "Callable[[str, AsyncHandler | Handler, Any, WorkerContext], Worker]"


def _sqs() -> _Driver:
    from oncegate.ingress.sqs import SqsWorker, read_address, validate

    return _Driver(read_address, validate, SqsWorker)


# A driver is imported when its scheme is first used, so that a process does not import the code of a queue that it does
# not use. AWS shows the URL of an SQS queue as https://…. The URL of an emulator may begin with http://.
_DRIVERS: Final[dict[str, Callable[[], _Driver]]] = {"sqs": _sqs, "https": _sqs, "http": _sqs}
_USE: Final = "use sqs, as in 'sqs://NAME?region=eu-central-1'"


def open_worker(
    url: str, handler: "AsyncHandler | Handler", options: Mapping[str, Any], context: "WorkerContext"
) -> "Worker":
    """Returns the worker for the queue at a URL. Raises SettingError if the URL or an option is invalid. No connection
    is opened before the worker runs."""
    driver = _driver(url)
    driver.check(url)
    return driver.open(url, handler, driver.validate(**options), context)


def check_queue(url: str) -> None:
    """Raise SettingError if `open_worker` would reject the URL. No connection is opened."""
    _driver(url).check(url)


def _driver(url: str) -> _Driver:
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise SettingError(f"{quoted(url)} is not a queue URL; {_USE}")
    if scheme not in _DRIVERS:
        raise SettingError(f"unknown queue scheme {scheme!r}; {_USE}")
    return _DRIVERS[scheme]()
