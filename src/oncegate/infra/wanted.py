"""What somebody wants to have on AWS, checked."""

import json
import re
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from msgspec import Struct, field

from oncegate.errors import SettingError

# All that Genesys sends: the name of a partner's source begins so, and every event has it as its source.
GENESYS: Final[Mapping[str, Any]] = {"source": [{"prefix": "aws.partner/genesys.com"}]}
DEFAULT_BUS: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_PARTNER: Final = re.compile(r"aws\.partner(/[.\-_A-Za-z0-9]+){2,}")
_HANDLER: Final = re.compile(r"[A-Za-z_][\w/]*(\.[A-Za-z_]\w*)+")
_RUNTIME: Final = re.compile(r"python3\.\d+")
_LONGEST_TIMEOUT: Final = 900
_RETENTIONS: Final = range(60, 14 * 86_400 + 1)
_LARGEST_CODE: Final = 50 * 1024 * 1024
_TIMEOUT: Final = 30
_TIMES_TIMEOUT: Final = 6  # what AWS asks for: Lambda may hold a batch back while it is throttled


class Function(Struct, frozen=True, kw_only=True):
    """A Lambda function. Its timeout is in seconds, as Lambda has it."""

    handler: str
    code: bytes = b""
    runtime: str = "python3.13"
    timeout: int = _TIMEOUT
    memory: int = 256
    variables: Mapping[str, str] = {}


class Wanted(Struct, frozen=True, kw_only=True):
    """The choice of parts. `queue`: events wait in a queue, for the function if there is one, else for a worker of your
    own. Times are in seconds."""

    name: str
    table: bool = True
    queue: bool = True
    rule: bool = True
    bus: str = DEFAULT_BUS
    partner_source: str | None = None
    pattern: Mapping[str, Any] = field(default_factory=lambda: dict(GENESYS))
    function: Function | None = None
    endpoint: str | None = None
    max_receives: int = 5
    message_retention: int = 4 * 86_400

    @property
    def bus_name(self) -> str:
        """The bus of a partner's source has the name of the source."""
        return self.partner_source or self.bus

    @property
    def visibility(self) -> int:
        return _TIMES_TIMEOUT * (self.function.timeout if self.function else _TIMEOUT)


def misses_partner(bus: str, pattern: Mapping[str, Any] | None) -> bool:
    """Whether a rule waits on the default bus for events of a partner, which arrive on the bus of the partner's source
    only."""
    return bus == DEFAULT_BUS and "aws.partner/" in json.dumps((pattern or {}).get("source", ""))


def checked(wanted: Wanted) -> Wanted:
    """The same, if it can be meant; else SettingError."""
    if not _NAME.fullmatch(wanted.name):
        raise SettingError(
            f"--name {wanted.name!r} cannot begin the names of parts; take a letter, then up to 31 letters, digits or -"
        )
    if wanted.partner_source is not None:
        _check_partner(wanted.partner_source, wanted.bus)
    if wanted.function is not None:
        _check_function(wanted.function)
    if wanted.message_retention not in _RETENTIONS:
        raise SettingError(f"--message-retention of {wanted.message_retention} s cannot be; SQS allows 1m to 14d")
    if not (wanted.table or wanted.queue or wanted.function or wanted.rule):
        raise SettingError("there is nothing left to make; leave out one of --no-table, --no-queue and --no-rule")
    if not (wanted.queue or wanted.function or not wanted.rule):
        raise SettingError("a rule needs somewhere to send to: take --queue or --lambda-zip, or --no-rule")
    return wanted


def _check_partner(source: str, bus: str) -> None:
    if not _PARTNER.fullmatch(source):
        raise SettingError(
            f"--partner-source {source!r} is none; its name is like aws.partner/genesys.com/cloud/ORGANISATION/NAME,"
            " as the AWS console shows it under Partner event sources"
        )
    if bus != DEFAULT_BUS:
        raise SettingError("--bus and --partner-source name two buses; that of a partner's source has its name")


def _check_function(function: Function) -> None:
    if not _HANDLER.fullmatch(function.handler):
        raise SettingError(f"--lambda-handler {function.handler!r} is none; write it like app.handler")
    if not _RUNTIME.fullmatch(function.runtime):
        raise SettingError(f"--lambda-runtime {function.runtime!r} is none of Python's; write it like python3.13")
    if not 1 <= function.timeout <= _LONGEST_TIMEOUT:
        raise SettingError(f"--lambda-timeout of {function.timeout} s cannot be; Lambda allows 1s to 15m")
    if function.code:
        _check_code(function)


def _check_code(function: Function) -> None:
    """What Lambda would only say when the other parts are made."""
    if len(function.code) > _LARGEST_CODE:
        raise SettingError("--lambda-zip is larger than the 50 MB that Lambda takes; leave out what its runtime has")
    try:
        with ZipFile(BytesIO(function.code)) as package:
            names = package.namelist()
    except BadZipFile as error:
        raise SettingError("--lambda-zip is no zip file; make one of your package: zip -r function.zip .") from error
    module = function.handler.rpartition(".")[0].replace(".", "/")
    if not {f"{module}.py", f"{module}/__init__.py"} & set(names):
        raise SettingError(
            f"--lambda-zip has no {module}.py for the handler {function.handler}; zip what is in the folder"
        )


def pattern_of(text: str, where: str) -> dict[str, Any]:
    """A rule's pattern from JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{where} is no JSON ({error}); write it like {json.dumps(GENESYS)}") from error
    if not isinstance(found, dict) or not found:
        raise SettingError(
            f"{where} is no pattern: a JSON object with at least one member, such as {json.dumps(GENESYS)}"
        )
    return found
