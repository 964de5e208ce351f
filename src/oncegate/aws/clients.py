"""The address of an emulator or a proxy in place of AWS's own."""

import re
from functools import cache
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import NoRegionError
from botocore.loaders import Loader

from oncegate.errors import SettingError
from oncegate.text import quoted

_ENDPOINT: Final = re.compile(r"https?://[^/?#@\s]+(?:/[^?#@\s]*)?")


def checked_endpoint(written: str | None, example: str = "http://127.0.0.1:4566") -> str | None:
    """The same, if it can be meant. It is shown in sentences, so nothing in it can be a secret."""
    if written is not None and not _ENDPOINT.fullmatch(written):
        raise SettingError(
            f"endpoint={quoted(written)} is no address; write it like endpoint={example}, without a password"
        )
    return written


# Clients of AWS's services. Credentials come from where AWS's own tools look.


# botocore's own knows only the second name, where AWS's other tools and Lambda have the first too.
_REGION: Final = ("region", ["AWS_REGION", "AWS_DEFAULT_REGION"], None, None)


def create_client(
    service: str, region: str | None, endpoint: str | None, place: str, *, attempts: int = 1, **options: Any
) -> Any:
    """A client for a service, at AWS's own address or another; SettingError if region or endpoint cannot be meant.

    It asks once, unless told otherwise: whoever asks decides what is asked again, and when."""
    checked_endpoint(endpoint)
    retries = {"mode": "standard", "total_max_attempts": attempts}
    config = Config(retries=retries, tcp_keepalive=True, user_agent_extra="oncegate", **options)
    try:
        session = botocore.session.Session({"region": _REGION})
        session.register_component("data_loader", _descriptions())
        region = region or session.get_config_variable("region")
        if not region:  # an empty one would be part of an address
            raise NoRegionError
        return session.create_client(service, region_name=region, endpoint_url=endpoint, config=config)
    except ValueError as error:  # some of botocore's own are also this
        raise SettingError(f"{place} cannot be asked: {error}") from error


@cache
def _descriptions() -> Loader:
    """botocore's descriptions of AWS, which take longer to read than all else: once for a process."""
    return Loader()


def api_action(action: str) -> str:
    """The name of a request as AWS has it: `DescribeTable` for `describe_table`."""
    return "".join(part.capitalize() for part in action.split("_"))
