"""The options of a deployment."""

import pytest

from oncegate.infra.wanted import GENESYS, Function, Wanted, misses_partner

SOURCE = "aws.partner/genesys.com/cloud/0e5c3f2a/crm"


def test_the_bus_of_a_partner_source() -> None:
    """The bus has the name of the partner event source, if there is one."""
    assert Wanted(name="crm").bus_name == "default"
    assert Wanted(name="crm", bus="calls").bus_name == "calls"
    assert Wanted(name="crm", partner_source=SOURCE).bus_name == SOURCE


def test_the_visibility_timeout() -> None:
    """Messages stay invisible for six times the timeout of the function, or of the default function."""
    assert Wanted(name="crm").visibility == 180
    assert Wanted(name="crm", function=Function(handler="app.handler", timeout=20)).visibility == 120


@pytest.mark.parametrize(
    ("bus", "pattern", "misses"),
    [
        ("default", GENESYS, True),
        ("default", {"source": [SOURCE]}, True),
        ("default", {"source": ["com.example.crm"]}, False),
        ("default", None, False),
        (SOURCE, GENESYS, False),
    ],
)
def test_rules_that_miss_partner_events(bus: str, pattern: dict[str, object] | None, misses: bool) -> None:
    """Events of a partner do not arrive on the default bus."""
    assert misses_partner(bus, pattern) is misses
