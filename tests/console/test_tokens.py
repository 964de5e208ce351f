"""The login tokens: from the settings, or generated and stored beside the store."""

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from oncegate.console.tokens import Login, configured_tokens, is_loopback, login_of
from oncegate.errors import SettingError
from oncegate.settings import Settings, load

TOKEN = "a token for tests, long enough"  # noqa: S105
LOCAL = "127.0.0.1"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings_of(**flags: str) -> Settings:
    return load(environ={}, flags={name.replace("__", "."): value for name, value in flags.items()})


class TestConfigured:
    def test_the_default_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEGATE_CONSOLE_TOKEN", f" {TOKEN}\n")

        assert login_of(load(), "0.0.0.0", can_show=False) == Login((TOKEN,), is_exposed=True)  # noqa: S104
        assert login_of(load(), LOCAL, can_show=True) == Login((TOKEN,))
        assert not Path("oncegate.console-token").exists()

    @pytest.mark.parametrize("flags", [{"serve.tls_cert": "cert.pem"}, {"serve.proxies": ["10.0.0.1"]}])
    def test_tls_or_a_proxy_protects_the_token(self, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEGATE_CONSOLE_TOKEN", TOKEN)

        assert not login_of(load(flags=flags), "0.0.0.0", can_show=False).is_exposed  # noqa: S104

    def test_the_default_variable_may_be_unset(self) -> None:
        assert configured_tokens(settings_of()) == ()

    def test_a_named_variable_must_be_set(self) -> None:
        with pytest.raises(SettingError, match="the variable OTHER is not set"):
            configured_tokens(settings_of(console__token_env="OTHER"))  # noqa: S106

    def test_several_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTHER", TOKEN)
        Path("token").write_text("another token, long enough\n")
        settings = settings_of(console__token_env="OTHER", console__token_file="token")  # noqa: S106

        assert configured_tokens(settings) == (TOKEN, "another token, long enough")

    def test_a_short_token_is_refused_and_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEGATE_CONSOLE_TOKEN", "short-secret")

        with pytest.raises(SettingError) as error:
            configured_tokens(settings_of())
        assert str(error.value) == (
            "console.token_env: secret 'ONCEGATE_CONSOLE_TOKEN' has 12 bytes; use at least 14 random bytes"
        )

    def test_an_empty_file_is_refused(self) -> None:
        Path("token").write_text("\n")

        with pytest.raises(SettingError, match="--token-file: the file token is empty"):
            configured_tokens(settings_of(console__token_file="token"))  # noqa: S106


class TestGenerated:
    def test_the_first_start_creates_a_private_file(self) -> None:
        login = login_of(settings_of(), LOCAL, can_show=False)

        path = Path("oncegate.console-token")
        assert path.read_text() == f"{login.generated}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert login == Login((str(login.generated),), generated=login.generated, file=str(path))
        assert len(str(login.generated)) == 43
        assert os.listdir() == [str(path)]

    def test_later_starts_use_the_file(self) -> None:
        first = login_of(settings_of(), LOCAL, can_show=True)
        second = login_of(settings_of(), LOCAL, can_show=True)

        assert second == Login(first.tokens, file="oncegate.console-token")

    @pytest.mark.parametrize(
        ("store", "file"),
        [
            ("sqlite:///crm.db", "crm.console-token"),
            ("sqlite:///a/b.sqlite3", "a/b.console-token"),
            ("sqlite:///x", "x.console-token"),
        ],
    )
    def test_the_file_is_beside_the_store(self, store: str, file: str) -> None:
        Path("a").mkdir()

        assert login_of(settings_of(store=store), LOCAL, can_show=False).file == file

    def test_processes_that_start_together_have_one_token(self) -> None:
        found: list[tuple[str, ...]] = []
        barrier = threading.Barrier(8)

        def start() -> None:
            barrier.wait()
            found.append(login_of(settings_of(), LOCAL, can_show=False).tokens)

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(found) == 8
        assert len(set(found)) == 1
        assert os.listdir() == ["oncegate.console-token"]

    def test_a_public_address_has_no_generated_token(self) -> None:
        login = login_of(settings_of(), "0.0.0.0", can_show=True)  # noqa: S104

        assert login == Login(
            off="other machines can reach 0.0.0.0, and no token is set; set ONCEGATE_CONSOLE_TOKEN to a random token"
        )
        assert os.listdir() == []

    def test_a_symbolic_link_is_not_followed(self) -> None:
        Path("target").write_text(f"{TOKEN}\n")
        Path("oncegate.console-token").symlink_to("target")

        login = login_of(settings_of(), LOCAL, can_show=False)

        assert login.off == (
            "cannot use oncegate.console-token: Too many levels of symbolic links; set ONCEGATE_CONSOLE_TOKEN to a"
            " random token"
        )

    def test_a_dangling_link_is_not_written_through(self) -> None:
        Path("oncegate.console-token").symlink_to("target")

        assert login_of(settings_of(), LOCAL, can_show=False).tokens == ()
        assert not Path("target").exists()

    def test_a_file_that_others_may_read_is_not_used(self) -> None:
        Path("oncegate.console-token").write_text(f"{TOKEN}\n")
        Path("oncegate.console-token").chmod(0o644)

        login = login_of(settings_of(), LOCAL, can_show=False)

        assert login.off.startswith("cannot use oncegate.console-token: other users may use the file; change its mode")

    @pytest.mark.parametrize("content", [b"", b"short", b"\n"])
    def test_a_file_without_a_token_is_not_used(self, content: bytes) -> None:
        Path("oncegate.console-token").write_bytes(content)
        Path("oncegate.console-token").chmod(0o600)

        login = login_of(settings_of(), LOCAL, can_show=False)

        assert login.off.startswith("cannot use oncegate.console-token: it has no token; delete the file")

    def test_a_pipe_is_not_waited_for(self) -> None:
        os.mkfifo("oncegate.console-token", 0o600)

        assert "it is not a regular file" in login_of(settings_of(), LOCAL, can_show=False).off

    def test_a_missing_folder(self) -> None:
        login = login_of(settings_of(store="sqlite:///no/store.db"), LOCAL, can_show=False)

        assert login.off.startswith("cannot use no/store.console-token: No such file or directory")

    @pytest.mark.parametrize("store", ["memory://", "redis://localhost", "dynamodb://Claims?region=eu-central-1"])
    def test_without_a_file_only_a_person_gets_a_token(self, store: str) -> None:
        """A log must not have the token, and nobody could know it otherwise."""
        settings = settings_of(store=store)

        assert login_of(settings, LOCAL, can_show=False) == Login(
            off="only a store in a file has a place for a generated token; set ONCEGATE_CONSOLE_TOKEN to a random token"
        )
        first, second = (login_of(settings, LOCAL, can_show=True) for _ in range(2))
        assert first.tokens != second.tokens
        assert (first.generated, first.file) == (first.tokens[0], None)
        assert os.listdir() == []


class TestSentences:
    def test_the_facts_never_have_the_token(self) -> None:
        for login in (Login((TOKEN,)), Login((TOKEN,), generated=TOKEN), Login((TOKEN,), generated=TOKEN, file="f")):
            assert TOKEN not in login.facts("http://localhost/console")
            assert TOKEN not in repr(login)
            assert TOKEN not in str(login)

    @pytest.mark.parametrize(
        ("login", "facts", "hint"),
        [
            (Login((TOKEN,)), "The console is at URL.", ""),
            (Login((TOKEN,), file="f"), "The console is at URL; its token is in f.", ""),
            (
                Login((TOKEN,), is_exposed=True),
                "The console is at URL.\nThe console has no TLS: others on the network can read its token. Set"
                " serve.tls_cert and serve.tls_key, or use a reverse proxy with TLS and name it in serve.proxies.",
                "",
            ),
            (
                Login((TOKEN,), generated=TOKEN, file="f"),
                "The console is at URL; its token is in f.",
                f"Log in to the console with this token:\n\n  {TOKEN}\n\n",
            ),
            (
                Login((TOKEN,), generated=TOKEN),
                "The console is at URL.",
                f"Log in to the console with this token, which is valid until this process ends:\n\n  {TOKEN}\n\n",
            ),
            (Login(off="no token is set"), "The console is off: no token is set.", ""),
        ],
    )
    def test_start_message(self, login: Login, facts: str, hint: str) -> None:
        assert (login.facts("URL"), login.hint) == (facts, hint)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example.com"])  # noqa: S104
def test_other_addresses(host: str) -> None:
    assert not is_loopback(host)


def test_a_disk_without_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft of the file does not stay."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    assert login_of(settings_of(), LOCAL, can_show=False).off.startswith("cannot use oncegate.console-token: Operation")
    assert os.listdir() == []
