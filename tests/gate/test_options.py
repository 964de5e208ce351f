"""Options are declared once, and everything else follows the declaration."""

from typing import Any, get_type_hints

import pytest

from oncegate import Gate
from oncegate.errors import SettingError
from oncegate.gate.options import OPTIONS, GateConfig, GateOptions, validate
from oncegate.settings.schema import GATE


def test_one_declaration() -> None:
    """The table, the types that checkers read, the configuration and the settings have the same names in one order."""
    names = list(OPTIONS)
    assert list(get_type_hints(GateOptions)) == names
    assert list(GateConfig.__struct_fields__) == [*names, "owns_retries"]
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


def test_unknown_option() -> None:
    """An unknown option is refused with the nearest known name."""
    with pytest.raises(SettingError, match="there is no setting on_conflit; did you mean on_conflict"):
        Gate("memory://", on_conflit="run")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("sliding", "no", "sliding='no' must be True or False"),
        ("sliding", None, "sliding=None must be True or False"),
        ("unguarded_types", 5, "unguarded_types=5 must be a list of event types"),
        ("unguarded_types", iter(["alarm"]), "must be a list of event types"),
        ("observers", None, "observers=None must be a list of callables"),
        ("observers", iter([print]), "must be a list of callables"),
        ("hints", {}, "hints={} must be oncegate.sources.Hints"),
        ("on_too_old", "bury", "on_too_old='bury' needs max_age"),
    ],
)
def test_invalid_value(name: str, value: Any, sentence: str) -> None:
    """An invalid value is refused, and the message says which values are valid."""
    with pytest.raises(SettingError, match=sentence):
        Gate("memory://", **{name: value})


@pytest.mark.parametrize("name", ["mode", "on_too_old", "on_missing_key", "on_store_error", "on_conflict", "on_replay"])
def test_unknown_choice(name: str) -> None:
    """A value that is not one of the choices is refused with the list of choices."""
    with pytest.raises(SettingError, match=f"{name}='often' is not a choice; it is one of "):
        Gate("memory://", **{name: "often"})  # type: ignore[arg-type]


def test_sliding_limit_shorter_than_retention() -> None:
    """With such a limit a record could not slide."""
    with pytest.raises(SettingError, match="could not slide"):
        Gate("memory://", sliding=True, retention="7d", sliding_limit="1d")


@pytest.mark.parametrize(
    "options",
    [
        {"on_store_error": "unguarded"},
        {"unguarded_types": ["alarm"]},
        {"on_store_error": "unguarded", "unguarded_types": "alarm"},
    ],
)
def test_unguarded_types_must_be_listed(options: Any) -> None:
    """Half a policy is refused: no types, types without the policy, or one string instead of a list."""
    with pytest.raises(SettingError, match="unguarded_types"):
        Gate("memory://", **options)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"retention": "10s"}, "retention='10s' is shorter than lease='30s'"),
        ({"lease": 30}, "lease=30 is not a duration"),
        ({"max_attempts": 0}, "max_attempts=0 must be a whole number, 1 or more"),
        ({"max_attempts": True}, "max_attempts=True must be"),
        ({"namespace": ""}, "namespace='' must be"),
        ({"namespace": "a\nb"}, "namespace="),
        ({"namespace": "x" * 129}, "namespace="),
        ({"key": "id"}, "use keys.auto"),
        ({"max_result": -1}, "max_result=-1 must be"),
    ],
)
def test_invalid_options(setting: dict[str, Any], message: str) -> None:
    """An invalid option is refused when the gate is made, by name."""
    with pytest.raises(SettingError) as caught:
        Gate("memory://", **setting)
    assert message in str(caught.value)


def test_unknown_mode() -> None:
    """An unknown mode is refused with the list of modes."""
    with pytest.raises(SettingError, match="mode='exactly' is not a choice; it is one of lease, mark_first"):
        Gate("memory://", mode="exactly")  # type: ignore[arg-type]


def test_remember_too_long() -> None:
    """More than a minute is refused: a gate would not notice what other processes do."""
    with pytest.raises(SettingError, match="remember='61s' is too long"):
        Gate("memory://", remember="61s")
