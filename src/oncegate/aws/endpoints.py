"""The address of an emulator or a proxy in place of AWS's own."""

import re
from typing import Final

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
