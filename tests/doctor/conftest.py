"""The emulator and the commands of the tests of `oncegate infra`."""

from tests.cli.conftest import oncegate
from tests.infra.conftest import aws, infra, package

__all__ = ["aws", "infra", "oncegate", "package"]
