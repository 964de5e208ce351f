"""The limit on open files, of which every connection is one."""

import logging
import resource
from typing import Final

_log = logging.getLogger("oncegate.service")

_MOST: Final = 65_536


def raised() -> int:
    """How many files may be open, now that it is as many as the system lets this process have, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # some systems have a lower limit besides, and do not tell
        return soft
    return most


def most_connections(asked: int, files: int) -> int:
    """Half of the files are for the store, for handlers and for what is forwarded."""
    if asked <= files // 2:
        return asked
    _log.warning(
        "serve.max_connections is %d, but only %d files may be open, so %d connections are; raise the limit, as with"
        " ulimit -n",
        asked,
        files,
        files // 2,
    )
    return files // 2
