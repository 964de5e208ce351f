"""Read settings from `oncegate.toml`, the variables `ONCEGATE_*` and flags.

A variable overrides the file, and a flag overrides both.

No other part of the package reads the environment.
"""

from oncegate.settings.load import examine, load
from oncegate.settings.settings import Settings

__all__ = ["Settings", "examine", "load"]
