"""Settings from `oncegate.toml`, the variables `ONCEGATE_*` and flags. A later source overrides an earlier one.

No other part of the package reads the environment.
"""

from oncegate.settings.load import examine, load
from oncegate.settings.settings import Settings

__all__ = ["Settings", "examine", "load"]
