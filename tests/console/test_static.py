"""The static files, and their addresses."""

from pathlib import Path

import pytest

import oncegate.console
from oncegate.console.static import static_file, static_url

FOLDER = Path(oncegate.console.__file__).parent / "static"


@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda file: file.name)
def test_every_file_of_the_folder_is_served(file: Path) -> None:
    answer = static_file(static_url(file.name).removeprefix("/console"))

    assert answer is not None
    assert (answer.code, answer.body) == (200, file.read_bytes())


def test_an_address_has_a_hash_of_the_content() -> None:
    """After a change of the file, a browser loads it again."""
    address = static_url("console.css").removeprefix("/console")

    folder, _, name = address.rpartition("/")
    assert static_file(f"{folder[:-1]}0/{name}") is None or folder.endswith("0")
    assert static_file(f"/static/{name}") is None


@pytest.mark.parametrize("path", ["/", "/static", "/static/", "/static/x", "/static/../static.py", "/events", ""])
def test_other_paths_are_no_static_files(path: str) -> None:
    assert static_file(path) is None


def test_a_file_that_does_not_exist_has_no_address() -> None:
    with pytest.raises(KeyError):
        static_url("none.js")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.js")), ids=lambda file: file.name)
def test_scripts_build_no_html_from_text(file: Path) -> None:
    """The content security policy requires trusted types, so these names would fail in a browser."""
    text = file.read_text()

    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function("):
        assert name not in text
    assert "http://" not in text.replace("http://www.w3.org/", "")
    assert "https://" not in text
