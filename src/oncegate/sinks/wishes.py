"""What forwarding can be told, as people write it. `Forward` says what each means."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

from oncegate.durations import Duration

Path: TypeAlias = str | os.PathLike[str]


class ForwardWishes(TypedDict, total=False):
    timeout: Duration
    headers: Mapping[str, str] | Path | None
    hosts: Sequence[str]
    allow_private: bool
    pins: Sequence[str]
    ca: Path | None
    certificate: Path | None
    certificate_key: Path | None
