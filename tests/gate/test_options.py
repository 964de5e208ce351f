"""Options are declared once, and everything else follows the declaration."""

from typing import get_type_hints

import pytest

from oncegate import Gate
from oncegate.errors import SettingError
from oncegate.gate.options import OPTIONS, GateConfig, GateOptions, validate
from oncegate.settings.schema import GATE


def test_one_declaration() -> None:
    """The table, the types that checkers read, the configuration and the settings have the same names in one order."""
    names = list(OPTIONS)
    assert list(get_type_hints(GateOptions)) == names
    assert list(GateConfig.__struct_fields__) == names
    assert [setting.name for setting in GATE] == names
    assert [setting.meaning for setting in GATE] == [option.doc for option in OPTIONS.values()]


def test_defaults_are_valid() -> None:
    """The defaults make a configuration with times in microseconds."""
    config = validate({})
    assert (config.lease, config.max_attempts, config.unguarded_types) == (30_000_000, 5, frozenset())


@pytest.mark.parametrize(("name", "option"), OPTIONS.items(), ids=list(OPTIONS))
def test_each_option_is_checked(name: str, option: object) -> None:
    """A value of a wrong type is refused with the name of the option and the value."""
    with pytest.raises(SettingError, match=name):
        Gate("memory://", **{name: object()})  # type: ignore[arg-type]
