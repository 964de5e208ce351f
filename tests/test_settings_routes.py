"""Routes in the settings file: their settings, what they inherit, and that secrets stay out of the file."""

import re
from pathlib import Path

import pytest

from oncegate.errors import SettingError
from oncegate.service.config import is_open, verifier_for
from oncegate.settings import Settings, examine, load
from oncegate.settings.load import secrets_of
from oncegate.settings.routes import name_of, routes_of

ROUTES = """
retention = "7d"
max_attempts = 3

[serve]
handler = "app:everything"
max_rate = 100

[read]
time = "at"

[route.genesys]
signature = "standard-webhooks"
secret_env = ["ONCEGATE_GENESYS", "NEXT"]
key = "event_id"
retention = "2d"

[route.genesys.read]
id = "meta.id"

[route.crm]
signature = "hmac"
signature_options = ["header=X-Signature", "prefix=sha256="]
secret_file = "crm.secret"
namespace = "customers"
handler = "app:on_case"
max_rate = 5
max_events = 10
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(toml: str = ROUTES, environ: dict[str, str] | None = None) -> Settings:
    Path("oncegate.toml").write_text(toml)
    return load(environ=environ or {})


def problems(table: str) -> list[str]:
    Path("oncegate.toml").write_text(f"[route.crm]\n{table}")
    return examine(environ={})[1]


class TestRoutes:
    def test_own_and_inherited_settings(self) -> None:
        """A route has all settings, and its table overrides them. The namespace is the name of the route unless it is
        set."""
        found = settings()
        genesys, crm = found.routes["genesys"], found.routes["crm"]
        assert (genesys["retention"], crm["retention"], found["retention"]) == ("2d", "7d", "7d")
        assert (genesys["max_attempts"], genesys["key"], crm["key"]) == (3, "event_id", "auto")
        assert (genesys["namespace"], crm["namespace"], found["namespace"]) == ("genesys", "customers", "default")
        assert (genesys["serve.handler"], crm["serve.handler"]) == ("app:everything", "app:on_case")
        assert (genesys["serve.max_rate"], crm["serve.max_rate"]) == (100, 5)
        assert (genesys["serve.max_events"], crm["serve.max_events"]) == (1_000, 10)
        assert (genesys["read.id"], genesys["read.time"], crm["read.id"]) == ("meta.id", "at", None)

    def test_no_signature_is_inherited(self) -> None:
        """Routes do not inherit the signature of /events: each names its own."""
        toml = '[serve]\nsignature = "none"\n[route.crm]\nnamespace = "x"'
        Path("oncegate.toml").write_text(toml)
        assert any("it has no signature" in problem for problem in examine(environ={})[1])

    def test_paths(self) -> None:
        """Routes are served under /events. /events itself is served if it is configured, or if there is no route."""
        assert list(routes_of(settings())) == ["/events/genesys", "/events/crm"]
        assert list(routes_of(settings(""))) == ["/events"]
        both = settings('[serve]\nsignature = "none"\n[route.crm]\nsignature = "none"')
        assert {path: (name_of(path), is_open(route)) for path, route in routes_of(both).items()} == {
            "/events/crm": ("crm", False),
            "/events": ("default", False),
        }
        assert is_open(settings(""))

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ('key = "auto"', 'it has no signature; name the signature scheme, or write signature = "none"'),
            ('signature = "none"\nsecret = "hunter2"', 'write secret_env = "ITS_NAME"'),
            ('signature = "none"\nretenton = "1d"', "there is no setting of a route retenton; did you mean retention?"),
            ('signature = "none"\nretention = 5', "retention=5 is not a duration"),
            ('signature = "none"\nmax_rate = 0', "max_rate=0 must be a whole number, 1 or more, or off"),
            ('signature = "none"\nstore = "memory://"', "there is no setting of a route store"),
            ('signature = "none"\nlease = "30d"', "retention='7d' is shorter than lease='30d'"),
            ('signature = "none"\nread = 1', "there is no setting of a route read"),
            ('signature = "none"\n[route.crm.read]\nidd = "a"', "there is no setting of a route idd; did you mean id?"),
            ('signature = "cxone"\non_conflict = "duplicate"', "would drop signed events"),
            (
                'signature = "none"\n[route.b]\nsignature = "none"\nnamespace = "crm"',
                "namespace='crm' is used by crm, too",
            ),
            (
                'signature = "none"\n[route."A/b"]\nsignature = "none"',
                "invalid name of a route; it is part of the URL, so use small letters",
            ),
        ],
    )
    def test_mistakes(self, table: str, message: str) -> None:
        """A mistake is reported with its route, and never with a value that may be a secret."""
        (problem,) = problems(table)
        assert problem.startswith("oncegate.toml [route.")
        assert message in problem
        assert "hunter2" not in problem

    def test_no_tables(self) -> None:
        """A value that must be a table is reported."""
        for toml, message in (
            ("route = 5", "oncegate.toml: route must have a table for each route: write [route.NAME], not [[route]], "),
            ('[[route]]\nname = "crm"', "oncegate.toml: route must have a table for each route: write [route.NAME], "),
            ("[route]\ncrm = 5", "it must be a table"),
        ):
            Path("oncegate.toml").write_text(toml)
            assert message in examine(environ={})[1][0]


def test_the_guide() -> None:
    """The routes in the guide are valid."""
    guide = (Path(__file__).parent.parent / "docs" / "guide" / "webhooks.md").read_text()
    example, metrics = re.findall(r"```toml\n(.+?)```", guide, re.DOTALL)
    found = settings(example, {"GENESYS_SECRET": "x"})
    assert list(routes_of(found)) == ["/events/genesys", "/events/crm"]
    tokens = settings(metrics, {})["serve.metrics_token_env"]
    assert tokens == ("METRICS_TOKEN",)


class TestSecrets:
    def test_from_variables_and_files(self, folder: Path) -> None:
        """Secrets come from variables with any name and from files. White space around them is removed."""
        (folder / "crm.secret").write_text("a secret that is long enough\n")
        found = settings(environ={"ONCEGATE_GENESYS": "now"})
        assert secrets_of(found.routes["genesys"], {"ONCEGATE_GENESYS": " now", "NEXT": "next"}) == {
            "ONCEGATE_GENESYS": "now",
            "NEXT": "next",
        }
        verifier = verifier_for(found.routes["crm"])
        assert verifier is not None
        assert verifier.labels == ("crm.secret",)

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ('signature = "cxone"', "needs a secret"),
            ('signature = "cxone"\nsecret_env = "UNSET_HERE"', "the variable UNSET_HERE is not set"),
            ('signature = "cxone"\nsecret_env = "hunter2!"', "write the name of a variable"),
            ('signature = "cxone"\nsecret_file = "nowhere"', "there is no file nowhere"),
            ('signature = "cxone"\nsecret_file = "."', "cannot read the file ."),
            ('signature = "cxone"\nsecret_file = "empty"', "the file empty is empty"),
            ('signature = "cxone"\nsecret_file = "bytes"', "is not UTF-8 text"),
            ('signature = "cxon"\nsecret_file = "good"', "did you mean cxone?"),
            ('signature = "none"\nsecret_file = "good"', "a secret is set, but no signature"),
            ('signature = "cxone"\nsecret_file = "short"', "use at least 14 random bytes"),
            ('signature = "hmac"\nsignature_options = ["header"]\nsecret_file = "good"', "such as header=x-sig"),
        ],
    )
    def test_invalid_secrets(self, folder: Path, table: str, message: str) -> None:
        """A problem with a secret is reported with its place, and never with a value that may be the secret."""
        (folder / "empty").write_text(" \n")
        (folder / "bytes").write_bytes(b"\xff\xfe\x00")
        (folder / "good").write_text("hunter2 and some more of it")
        (folder / "short").write_text("hunter2")
        route = settings(f"[route.crm]\n{table}").routes["crm"]
        with pytest.raises(SettingError) as error:
            verifier_for(route)
        assert message in str(error.value)
        assert str(error.value).startswith("oncegate.toml [route.crm], ")
        assert "hunter2" not in str(error.value)
