"""The emulator and the commands of the tests of `oncegate infra`."""

from tests.cli.conftest import oncegate
from tests.infra.conftest import aws, infra, package
from tests.stores.conftest import dynamo_server, postgres

__all__ = ["aws", "dynamo_server", "infra", "oncegate", "package", "postgres"]
