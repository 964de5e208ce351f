"""A running service with two routes, for tests that only read what it says about itself."""

from collections.abc import Iterator

import pytest

from tests.service.running import Service
from tests.signatures.sending import whsec

TOML = """
[serve]
signature = "none"
mode = "inline"

[route.crm]
signature = "standard-webhooks"
secret_env = "CRM_SECRET"
max_rate = 2
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with an unsigned route, and a signed route with a limit."""
    folder = tmp_path_factory.mktemp("telling")
    with Service(folder, toml=TOML, environ={"CRM_SECRET": whsec(1)}) as service:
        yield service
