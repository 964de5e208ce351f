"""Define and validate the options of a deployment."""

import json
import re
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from msgspec import Struct, field

from oncegate.errors import SettingError

# This pattern matches all events of Genesys. Their source is the name of the partner event source, which begins with
# this prefix.
GENESYS: Final[Mapping[str, Any]] = {"source": [{"prefix": "aws.partner/genesys.com"}]}
DEFAULT_BUS: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_PARTNER: Final = re.compile(r"aws\.partner(/[.\-_A-Za-z0-9]+){2,}")
_HANDLER: Final = re.compile(r"[A-Za-z_][\w/]*(\.[A-Za-z_]\w*)+")
_RUNTIME: Final = re.compile(r"python3\.\d+")
_MAX_TIMEOUT: Final = 900
_MESSAGE_RETENTIONS: Final = range(60, 14 * 86_400 + 1)
_MAX_CODE_SIZE: Final = 50 * 1024 * 1024
_DEFAULT_TIMEOUT: Final = 30
_VISIBILITY_FACTOR: Final = 6  # AWS recommends this factor, because Lambda may hold a batch while Lambda is throttled


class Function(Struct, frozen=True, kw_only=True):
    """A Lambda function. The timeout is in seconds, and the memory is in MB."""

    handler: str
    code: bytes = b""
    runtime: str = "python3.13"
    timeout: int = _DEFAULT_TIMEOUT
    memory: int = 256
    variables: Mapping[str, str] = {}


class Wanted(Struct, frozen=True, kw_only=True):
    """The options of a deployment. `table`, `queue`, `rule` and `function` select the parts.

    With `queue`, events wait in a queue. The function reads the queue if there is a function; otherwise a worker reads
    the queue. `publish` lists the URLs of the queues and buses that the consumer publishes to. Times are in
    seconds."""

    name: str
    table: bool = True
    queue: bool = True
    rule: bool = True
    bus: str = DEFAULT_BUS
    partner_source: str | None = None
    pattern: Mapping[str, Any] = field(default_factory=lambda: dict(GENESYS))
    function: Function | None = None
    publish: tuple[str, ...] = ()
    endpoint: str | None = None
    max_receives: int = 5
    message_retention: int = 4 * 86_400

    @property
    def bus_name(self) -> str:
        """The name of the bus. The bus of a partner event source has the name of the source."""
        return self.partner_source or self.bus

    @property
    def visibility(self) -> int:
        return _VISIBILITY_FACTOR * (self.function.timeout if self.function else _DEFAULT_TIMEOUT)


def misses_partner(bus: str, pattern: Mapping[str, Any] | None) -> bool:
    """Return whether the rule is on the default bus but its pattern is for events of a partner. Events of a partner
    arrive only on the bus of the partner event source."""
    return bus == DEFAULT_BUS and "aws.partner/" in json.dumps((pattern or {}).get("source", ""))


def checked(wanted: Wanted) -> Wanted:
    """Return the options unchanged. Raises SettingError if an option is invalid."""
    if not _NAME.fullmatch(wanted.name):
        raise SettingError(
            f"--name {wanted.name!r} is not a valid name; use a letter, then up to 31 letters, digits or -"
        )
    if wanted.partner_source is not None:
        _check_partner(wanted.partner_source, wanted.bus)
    if wanted.function is not None:
        _check_function(wanted.function)
    if wanted.message_retention not in _MESSAGE_RETENTIONS:
        raise SettingError(f"--message-retention of {wanted.message_retention} s is out of range; SQS allows 1m to 14d")
    if not (wanted.table or wanted.queue or wanted.function or wanted.rule or wanted.publish):
        raise SettingError("no part is selected; leave out one of --no-table, --no-queue and --no-rule")
    if not (wanted.queue or wanted.function or not wanted.rule):
        raise SettingError("the rule has no target; add --queue or --lambda-zip, or --no-rule")
    return wanted


def _check_partner(source: str, bus: str) -> None:
    if not _PARTNER.fullmatch(source):
        raise SettingError(
            f"--partner-source {source!r} is not a partner event source; write it like"
            " aws.partner/genesys.com/cloud/ORGANISATION/NAME, as the AWS console shows it under Partner event sources"
        )
    if bus != DEFAULT_BUS:
        raise SettingError(
            "--bus and --partner-source name two buses; leave out --bus, because the bus has the name of the source"
        )


def _check_function(function: Function) -> None:
    if not _HANDLER.fullmatch(function.handler):
        raise SettingError(f"--lambda-handler {function.handler!r} is not a handler; write it like app.handler")
    if not _RUNTIME.fullmatch(function.runtime):
        raise SettingError(f"--lambda-runtime {function.runtime!r} is not a Python runtime; write it like python3.13")
    if not 1 <= function.timeout <= _MAX_TIMEOUT:
        raise SettingError(f"--lambda-timeout of {function.timeout} s is out of range; Lambda allows 1s to 15m")
    if function.code:
        _check_code(function)


def _check_code(function: Function) -> None:
    """Raise SettingError if the package is too large, is not a zip file, or lacks the module of the handler. The check
    runs before any part is created: Lambda would refuse the package only after the other parts were created."""
    if len(function.code) > _MAX_CODE_SIZE:
        raise SettingError(
            "--lambda-zip is larger than the 50 MB that Lambda allows; leave out packages that its runtime has"
        )
    try:
        with ZipFile(BytesIO(function.code)) as package:
            names = package.namelist()
    except BadZipFile as error:
        raise SettingError(
            "--lambda-zip is not a zip file; create one in the folder of your package with: zip -r function.zip ."
        ) from error
    module = function.handler.rpartition(".")[0].replace(".", "/")
    if not {f"{module}.py", f"{module}/__init__.py"} & set(names):
        raise SettingError(
            f"--lambda-zip has no {module}.py for the handler {function.handler}; zip the content of the folder"
        )


def pattern_of(text: str, where: str) -> dict[str, Any]:
    """Parse the event pattern of a rule. Raises SettingError if the text is not a JSON object with members. `where` is
    the name of the text in the error message."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{where} is not valid JSON ({error}); write it like {json.dumps(GENESYS)}") from error
    if not isinstance(found, dict) or not found:
        raise SettingError(
            f"{where} is not an event pattern; write a JSON object with members, such as {json.dumps(GENESYS)}"
        )
    return found
