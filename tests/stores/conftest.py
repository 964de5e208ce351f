"""An option of pytest for the tests of stores."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pgbouncer", action="store_true", help="reach Postgres through a PgBouncer in transaction mode")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With PgBouncer, leave out tests of sessions: in transaction mode no client has its own session."""
    if config.getoption("--pgbouncer", False):
        of_sessions = [item for item in items if item.get_closest_marker("session")]
        config.hook.pytest_deselected(items=of_sessions)
        items[:] = [item for item in items if item not in of_sessions]
