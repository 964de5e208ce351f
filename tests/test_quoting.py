"""Commands on the pages, in help texts and in messages can be pasted into zsh, which expands more than sh."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, oncegate

__all__ = ["oncegate"]

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SOURCES = sorted(path for folder in ("src", "examples") for path in (ROOT / folder).rglob("*.py"))
_PROGRAM = r"(?:\.venv/bin/)?(?:oncegate|python|pip|make|curl|aws|sqlite3|psql|pg_dump|openssl|systemctl|nginx|caddy) "
_TYPED = re.compile(rf"(?:[A-Z_]+=\S+ )*{_PROGRAM}.*")
# In quotes, expanded by the shell on purpose, or a placeholder in a synopsis, such as [OPTIONS].
_QUOTED = re.compile(r"\[[A-Z]+\](?:\.\.\.)?|'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\([^)]*\)|\$\{[^}]*\}")
# zsh expands ? * [ ] in file names; & starts a command in the background; an interactive zsh has no comments.
_EXPANDED = re.compile(r"[?*\[\]]|&(?!&|$)(?<!&&)|(?<=\s)#")


def typed(page: str) -> Iterator[str]:
    """The commands of a page: lines of blocks, and code in the text."""
    for block in re.findall(r"^[ ]*```(?:sh|console)?\n(.+?)^[ ]*```$", page, re.MULTILINE | re.DOTALL):
        yield from (line.strip() for line in block.splitlines() if _TYPED.fullmatch(line.strip()))
    prose = re.sub(r"^[ ]*```.+?^[ ]*```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"^ {4,}(\S.*)$", prose, re.MULTILINE):
        if _TYPED.fullmatch(line):
            yield line
    for code in re.findall(r"`([^`]+)`", re.sub(r"^ {4,}.*$", "", prose, flags=re.MULTILINE)):
        if _TYPED.fullmatch(code.replace("\n", " ")):
            yield code.replace("\n", " ")


def printed(texts: Iterable[str]) -> Iterator[str]:
    """The commands in the strings of a module. In prose, the end of a command is a backtick or a semicolon."""
    for text in texts:
        for found in re.finditer(rf"(?<![\w/-]){_PROGRAM}[^`;\n]+", text):
            urls = re.findall(r"""(?<!['"])\b[a-z+]+://[^\s'"]+""", found[0])
            if found[0].startswith(("oncegate", "curl", "aws")) and urls:
                yield " ".join((found[0].split()[0], *urls))


def strings(source: str) -> Iterator[str]:
    """The strings of a module. In an f-string, `VALUE` stands for a value."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def expanded(command: str) -> str | None:
    """The first character of a command that zsh expands because it is not quoted."""
    found = _EXPANDED.search(_QUOTED.sub("", command))
    return found[0] if found else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    """No command of a page has an unquoted character that zsh expands, and none ends with a comment."""
    assert [command for command in typed(page.read_text()) if expanded(command)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages(path: Path) -> None:
    """No command in a message, a help text or a docstring has an unquoted URL that zsh expands. A message that tells
    the reader to write a URL with options shows the URL in quotes."""
    texts = list(strings(path.read_text()))
    assert [command for command in printed(texts) if expanded(command)] == []
    for text in texts:
        assert not re.search(r"\b(?:write|use|as in|or) [a-z+]+://\S*\?", text), text


@pytest.mark.parametrize("path", sorted((ROOT / "src" / "oncegate" / "cli").glob("*.py")), ids=lambda path: path.name)
def test_help_texts(path: Path) -> None:
    """A URL with options is in quotes where a help text shows it."""
    for text in strings(path.read_text()):
        assert not re.search(r"\w://\S*\?", re.sub(r"'[^'\s]+'", "", text)), text


def test_a_printed_file_name(tmp_path: Path, oncegate: Run) -> None:
    """The command that `oncegate simulate` prints has the file name in quotes, if the shell needs them."""
    _, out, _ = oncegate("simulate", "--to", f"file://{tmp_path}/sent", "--events", "1", "--truth", "what? all")
    assert " oncegate verify --truth 'what? all' --effects FILE" in " ".join(out.split())


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("oncegate work sqs://cases?region=eu-central-1", "?"),
        ("oncegate work 'sqs://cases?region=eu-central-1&endpoint=http://x'", None),
        ('curl -s "http://127.0.0.1/?x=1"', None),
        ("oncegate work sqs://cases&region=x", "&"),
        ("oncegate serve &", None),
        ("make lock && make test", None),
        ("pip install .[serve]", "["),
        ("oncegate explain [OPTIONS] [ID]", None),
        ("make test     # all tests", "#"),
        ("oncegate read *.json", "*"),
    ],
)
def test_the_check_finds_it(command: str, found: str | None) -> None:
    """The check itself finds each unquoted character, on a page and in a message."""
    assert expanded(command) == found
    assert list(typed(f"Text:\n\n    {command}\n")) == [command]
    assert list(typed(f"Text with `{command}` in it.\n")) == [command]
    if found in ("?", "&"):
        assert [expanded(each) for each in printed(strings(f"f'to repair: {command}; {{x}}'"))] == [found]
