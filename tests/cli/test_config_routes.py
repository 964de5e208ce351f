"""Routes in `oncegate config`."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.test_settings_routes import ROUTES


def test_check(oncegate: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`config check` reports missing secrets, handlers and certificates at once."""
    (tmp_path / "app.py").write_text("def everything(event): ...")
    (tmp_path / "oncegate.toml").write_text(ROUTES)
    monkeypatch.setenv("ONCEGATE_SERVE_TLS_CERT", "cert.pem")
    code, _, err = oncegate("config", "check")
    assert code == 2
    assert "the variable ONCEGATE_GENESYS is not set" in err
    assert "there is no file crm.secret" in err
    assert "there is no on_case in app" in err
    assert "TLS needs serve.tls_key too" in err


def test_show(oncegate: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`config show` shows the settings of each route and the places of its secrets, but no secret."""
    (tmp_path / "oncegate.toml").write_text(ROUTES)
    (tmp_path / "crm.secret").write_text("hunter2 and some more")
    monkeypatch.setenv("ONCEGATE_GENESYS", "hunter2 and more")
    code, out, err = oncegate("config", "show")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["route.genesys.secret_env", "ONCEGATE_GENESYS,NEXT", "oncegate.toml", "[route.genesys]"] in lines
    assert ["route.crm.handler", "app:on_case", "oncegate.toml", "[route.crm]"] in lines
    assert "hunter2" not in out


def test_a_door_that_is_open(oncegate: Run, tmp_path: Path) -> None:
    """Without a signature setting the service listens on loopback only; with one it may listen on any address."""
    (tmp_path / "oncegate.toml").write_text('[serve]\nhost = "0.0.0.0"')
    code, _, err = oncegate("config", "check")
    assert (code, "no signature is checked" in err) == (2, True)
    for word in (
        '[serve]\nhost = "0.0.0.0"\nsignature = "none"',
        '[serve]\nhost = "0.0.0.0"\n[route.a]\nsignature = "none"',
    ):
        (tmp_path / "oncegate.toml").write_text(word)
        assert oncegate("config", "check")[0] == 0
