"""Commands that show what the inspection finds."""

from tests.cli.conftest import oncegate
from tests.stores.conftest import dynamo_server, postgres, redis_cluster, redis_server, table

__all__ = ["dynamo_server", "oncegate", "postgres", "redis_cluster", "redis_server", "table"]
