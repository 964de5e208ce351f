"""Sinks from settings, as `oncegate serve` and `oncegate work` create them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate
from oncegate.cli import work
from oncegate.cli.serve import handler_of
from oncegate.errors import SettingError
from oncegate.settings import Settings, load
from tests.sinks.receiver import CA, SERVER_PIN, receiving


def given(**flags: Any) -> Settings:
    return load(environ={}, flags={path.replace("__", "."): value for path, value in flags.items()})


def test_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration file is enough to forward events, with all options."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headers").write_text("X-Api-Key: 1\n")
    with receiving("server") as receiver:
        (tmp_path / "oncegate.toml").write_text(
            f'[serve]\nforward = "{receiver.url()}"\n[forward]\nheaders = "headers"\nca = "{CA}"\n'
            f'allow_private = true\npins = ["{SERVER_PIN}"]\nhosts = ["127.0.0.1"]\ntimeout = "5s"\n'
        )
        handler = handler_of(load(environ={}))
        assert handler is not None
        assert Gate("memory://").run({"id": "1"}, handler).status == "processed"
        handler.close()  # type: ignore[union-attr]  # sinks have it
        assert receiver.received[0][1]["X-Api-Key"] == "1"


def test_work() -> None:
    """Events of a queue can be forwarded and published, too, and one of the handlers is required."""
    with receiving() as receiver:
        handler = work.handler_of(given(work__forward=receiver.url(), forward__allow_private=True))
        assert Gate("memory://").run({"id": "1"}, handler).status == "processed"
        handler.close()  # type: ignore[union-attr]  # sinks have it
        assert len(receiver.received) == 1
    with pytest.raises(SettingError, match="--forward and --publish: only one of these can be used"):
        work.handler_of(given(work__forward="https://a.example", work__publish="sqs://q"))
    with pytest.raises(SettingError, match="no handler; use --handler MODULE:FUNCTION, --forward URL"):
        work.handler_of(given(serve__forward="https://a.example"))


def test_no_handler() -> None:
    """Without a handler, a URL or a queue there is nothing to run. `log` must be chosen explicitly."""
    assert handler_of(given()) is None
    logging = handler_of(given(serve__handler="log"))
    assert logging is not None
    assert asyncio.run(Gate("memory://").arun({"id": "1"}, logging)).status == "processed"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            {"serve__publish": "sqs://q", "mode": "mark_first"},
            "--publish: mode='mark_first' completes an event before it is published",
        ),
        (
            {"serve__forward": "https://a.example", "serve__publish": "sqs://q"},
            "--forward and --publish: only one of these can be used; set the others to off",
        ),
        (
            {"serve__forward": "https://a.example", "serve__handler": "app:on_event"},
            "--handler and --forward: only one of these can be used; set the others to off",
        ),
        (
            {"serve__forward": "https://u:s3cret@a.example"},
            "--forward: the URL to forward to must not contain",
        ),
        ({"serve__forward": "http://a.example"}, "--forward: http://a.example is not encrypted"),
        ({"serve__publish": "sqs://"}, "--publish: 'sqs://' has no valid queue name"),
        (
            {"serve__forward": "https://a.example", "forward__pins": "1"},
            "--forward-pins: the pin '1' is not the SHA-256 of a public key",
        ),
    ],
)
def test_invalid_sinks(flags: dict[str, str], problem: str) -> None:
    """An error of a sink names the setting that configures it."""
    with pytest.raises(SettingError) as caught:
        handler_of(given(**flags))
    assert str(caught.value).startswith(problem)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"serve__forward": "ftp://a"}, "serve.forward='ftp://a' must be a URL that starts with https:// or http://"),
        ({"serve__forward": "a.example"}, "must be a URL that starts with"),
        ({"serve__publish": "https://a"}, "must be a URL that starts with sqs://, eventbridge://, "),
    ],
)
def test_schemes(flags: dict[str, str], problem: str) -> None:
    """A URL with another scheme is rejected like any other invalid value."""
    with pytest.raises(SettingError) as caught:
        given(**flags)
    assert problem in str(caught.value)
