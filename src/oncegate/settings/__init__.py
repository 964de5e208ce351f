"""Settings: what `oncegate.toml`, then the variables `ONCEGATE_*`, then flags say; the later wins.

Nothing else in the package reads the environment.
"""

from oncegate.settings.load import examine, load
from oncegate.settings.settings import Settings

__all__ = ["Settings", "examine", "load"]
