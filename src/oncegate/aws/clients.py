"""Create botocore clients. Credentials come from the standard AWS sources."""

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
# botocore reads only AWS_DEFAULT_REGION. Lambda and the other AWS tools also set AWS_REGION.
_REGION: Final = ("region", ["AWS_REGION", "AWS_DEFAULT_REGION"], None, None)


def create_client(
    service: str, region: str | None, endpoint: str | None, place: str, *, attempts: int = 1, **options: Any
) -> Any:
    """Return a client for a service. The client uses `endpoint`, or the endpoint of AWS if `endpoint` is None.

    By default the client sends each request once, because the caller decides which requests to retry and when.
    Raises SettingError if the region or the endpoint is invalid. `place` is the text for the service in messages."""
    checked_endpoint(endpoint)
    retries = {"mode": "standard", "total_max_attempts": attempts}
    config = Config(retries=retries, tcp_keepalive=True, user_agent_extra="oncegate", **options)
    try:
        session = botocore.session.Session({"region": _REGION})
        session.register_component("data_loader", _loader())
        region = region or session.get_config_variable("region")
        if not region:  # botocore would put an empty region into the host name
            raise NoRegionError
        return session.create_client(service, region_name=region, endpoint_url=endpoint, config=config)
    except ValueError as error:  # some botocore exceptions are also ValueErrors
        raise SettingError(
            f"cannot create a client for {place}: {error}; correct the region or the endpoint"
        ) from error


@cache
def _loader() -> Loader:
    """Return the loader of botocore's service descriptions. The process has one loader, because reading the
    descriptions is the slowest part of creating a client."""
    return Loader()


def checked_endpoint(endpoint: str | None, example: str = "http://127.0.0.1:4566") -> str | None:
    """Return the endpoint unchanged. Raises SettingError if the endpoint is not a plain http(s) URL.

    An endpoint with credentials is rejected, because messages show the endpoint. `example` is the valid endpoint that
    the error message shows."""
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        raise SettingError(
            f"endpoint={quoted(endpoint)} is not a valid URL; write it without credentials, such as endpoint={example}"
        )
    return endpoint


def api_action(method: str) -> str:
    """Return the AWS name of a botocore method: `DescribeTable` for `describe_table`."""
    return "".join(part.capitalize() for part in method.split("_"))
