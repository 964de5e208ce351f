"""Blocks about the command line: all commands with their arguments and options, and the exit codes."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import Final

import click

from oncegate.cli import exit_codes
from oncegate.cli.main import cli
from oncegate.settings.schema import SETTINGS, Setting
from tests.reference.markdown import Rows, code, table, wrapped

_DEFAULT: Final = re.compile(r"  \[default: (.+)\]$", re.DOTALL)
# Options that several commands have in common. They are listed once, and each command links to the list.
_GROUPS: Final = {
    "Options of the gate": tuple(each for each in SETTINGS.values() if not each.table),
    "Options for plain events": tuple(each for each in SETTINGS.values() if each.table == "read"),
    "Options for forwarding": tuple(each for each in SETTINGS.values() if each.table == "forward"),
}
_MEANINGS: Final = {each.meaning.replace("`", ""): each.meaning for each in SETTINGS.values()}  # help has no `
_SECTION: Final = re.compile(r"^(?:Examples|Exit codes):\n(?: {2}.*\n?)+", re.MULTILINE)
_WIDE: Final = 1_000  # columns: the help is not wrapped
_HEADERS: Final = ("option", "default", "meaning")


def command_index(_argument: str, _rows: Rows) -> str:
    cells = [(f"[`{path}`](#{_anchor(path)})", _first_sentence(command)) for path, command in commands_with_paths()]
    return table(("command", "what it does"), cells)


def commands(_argument: str, _rows: Rows) -> str:
    return "\n\n".join(_section(path, command) for path, command in commands_with_paths())


def shared_options(_argument: str, _rows: Rows) -> str:
    """The groups of options that commands have in common."""
    found = {option: each for _, command in commands_with_paths() for each in command.params for option in each.opts}
    sections = []
    for title, settings in _GROUPS.items():
        rows = [_row(each) for setting in settings if isinstance(each := found.get(setting.flag), click.Option)]
        sections.append(f"### {title}\n\n{table(_HEADERS, rows)}")
    return "\n\n".join(sections)


def global_options(_argument: str, _rows: Rows) -> str:
    return table(_HEADERS, [_row(each) for each in _options(cli)])


def codes(_argument: str, _rows: Rows) -> str:
    return table(("code", "meaning"), [(str(code), meaning) for code, meaning in exit_codes.MEANINGS.items()])


def commands_with_paths() -> Iterator[tuple[str, click.Command]]:
    """Each command that does something, with its name: `dlq list`. A group is not such a command."""

    def walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from walk(command, (*path, name))
            elif not command.hidden:
                yield " ".join((*path, name)), command

    return walk(cli, ())


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"oncegate {path}", terminal_width=_WIDE, max_content_width=_WIDE)
    usage = " ".join([f"oncegate {path}", *command.collect_usage_pieces(context)])
    parts = [f"### {path}", f"    {usage}", _help(command.help or ""), *_sections(command.get_help(context))]
    general = {each.opts[0] for each in _options(cli)}
    options, shared = [each for each in _options(command) if each.opts[0] not in general], []
    for title, settings in _GROUPS.items():
        flags = [setting.flag for setting in settings]
        if set(flags) <= {name for each in options for name in each.opts} and _same_help(options, settings):
            options = [each for each in options if each.opts[0] not in flags]
            shared.append(f"[{_lower(title)}](#{_anchor(title)})")
    if options:
        parts.append(table(_HEADERS, [_row(each) for each in options]))
    if shared:
        parts.append(f"Also takes the {', the '.join(shared)}.")
    return "\n\n".join(parts)


def _sections(rendered: str) -> list[str]:
    """The sections that the help prints after the options, as blocks of code."""
    found = _SECTION.findall(rendered)
    return ["\n".join(f"    {line}" for line in section.rstrip().splitlines()) for section in found]


def _same_help(options: list[click.Option], settings: tuple[Setting, ...]) -> bool:
    """Whether the options mean the same as in the list of the group; `--namespace` also exists as a filter."""
    helps = {each.opts[0]: each.help or "" for each in options}
    return all(setting.meaning.replace("`", "") in helps[setting.flag] for setting in settings)


def _options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


def _row(option: click.Option) -> tuple[str, str, str]:
    """The option with the name of its value, its default, and its meaning with the range of a number."""
    context = click.Context(cli)
    names = [", ".join([*option.opts, *option.secondary_opts])]
    if not option.is_flag:
        names.append(option.make_metavar(context).strip("[]"))
    text = option.help or ""
    stated = _DEFAULT.search(text)
    default = stated[1] if stated else _own_default(option)
    meaning = _DEFAULT.sub("", text)
    meaning = _MEANINGS.get(meaning, meaning) + _range(option)
    return code(" ".join(names)), "required" if option.required else _default_cell(default), meaning.replace("|", "\\|")


def _own_default(option: click.Option) -> str:
    return str(option.default) if option.show_default else ""


def _default_cell(default: str) -> str:
    """A default; words that are not a value are not code."""
    return code(default) if default and " " not in default and default not in ("random", "none", "off") else default


def _range(option: click.Option) -> str:
    kind = option.type
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    return f" From {_number(kind.min)} to {_number(kind.max)}."


def _number(bound: float | None) -> str:
    return f"{bound:,}" if isinstance(bound, int) else str(bound)


def _help(text: str) -> str:
    """The help of a command as Markdown. A paragraph that click does not wrap is a block of code."""
    parts = []
    for paragraph in cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            parts.append("\n".join(f"    {line}" for line in paragraph.splitlines()[1:]))
        else:
            parts.append(wrapped(paragraph))
    return "\n\n".join(parts)


def _first_sentence(command: click.Command) -> str:
    return (
        " ".join(cleandoc(command.help or "").partition("\n\n")[0].split()).partition(". ")[0].removesuffix(".") + "."
    )


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
