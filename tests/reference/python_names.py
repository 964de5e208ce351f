"""Blocks about Python: signatures, parameters, members of classes, statuses, options and errors."""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from textwrap import dedent, fill
from typing import Any, Final, get_args

import oncegate
from oncegate import Event, Gate, Outcome, errors, keys, open_store, read
from oncegate.claims import EventSummary, Record
from oncegate.events import Evidence, Key, StateChange, with_webhook_id
from oncegate.gate import JsonLog, Notice
from oncegate.gate.options import OPTIONS, GateOptions
from oncegate.gate.outcome import STATUSES, Cause, Kind, Status
from oncegate.ingress.inbox import InboxWorker
from oncegate.ingress.worker import Figures, Worker
from oncegate.otel import Tracing
from oncegate.settings import Settings, load
from oncegate.sinks import publish
from oncegate.sinks.forwarding import Forward
from oncegate.sources import Hints
from oncegate.sources.plain import paths
from tests.reference.markdown import Rows, code, table, wrapped

# Every name that a block may be about, as users write it.
CLASSES: Final[dict[str, type[Any]]] = {
    each.__name__: each
    for each in (Event, Evidence, Key, StateChange, Outcome, Record, EventSummary, Notice, Figures, Hints)
}
_FUNCTIONS: Final[dict[str, Any]] = {
    "Gate": Gate.__init__,
    "read": read,
    "open_store": open_store,
    "plain.paths": paths,
    "JsonLog": JsonLog.__init__,
    "Tracing": Tracing.__init__,
    "load": load,
    "settings.gate": Settings.gate,
    "sinks.forward": Forward.__init__,
    "sinks.publish": publish,
    "RetryLater": errors.RetryLater.__init__,
    "Bury": errors.Bury.__init__,
    **{f"gate.{name}": method for name, method in vars(Gate).items() if inspect.isfunction(method)},
    **{f"keys.{name}": function for name, function in vars(keys).items() if inspect.isfunction(function)},
}
_INTERFACES: Final[dict[str, type[Any]]] = {"Worker": Worker, "InboxWorker": InboxWorker}
_LONGEST_CALL: Final = 100
_CONSTANTS: Final = {
    "NO_HINTS": "Hints()",
    "NO_EVIDENCE": "Evidence()",
    "plain.PATHS": "plain.paths()",
    "_NO_FLAGS": "{}",
}
_CONSTANT: Final = re.compile("|".join(map(re.escape, _CONSTANTS)))


# ── functions ─────────────────────────────────────────────────────────────────────────────────────────────


def signature(name: str, rows: Rows) -> str:
    """The call of a function, and a table of its parameters. The last column is written by hand."""
    function = _function(_FUNCTIONS[name])
    parameters = list(_parameters(function))
    if not parameters:
        return _call(name, function)
    cells = [
        (code(parameter), _type(annotation), default, rows.text_of(code(parameter)))
        for parameter, annotation, default in parameters
    ]
    return f"{_call(name, function)}\n\n{table(('parameter', 'type', 'default', 'meaning'), cells)}"


def _function(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    (parsed,) = ast.parse(dedent(inspect.getsource(function))).body
    assert isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef)
    return parsed


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr | None, str]]:
    """The name, the annotation and the default of each parameter, without `self`."""
    arguments = function.args
    by_place = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(by_place) - len(arguments.defaults)), *arguments.defaults]
    several = [] if arguments.vararg is None else [(f"*{arguments.vararg.arg}", arguments.vararg, None)]
    for name, parameter, default in [
        *((each.arg, each, default) for each, default in zip(by_place, defaults, strict=True)),
        *several,
        *((each.arg, each, default) for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)),
    ]:
        if name != "self":
            yield name, parameter.annotation, "required" if default is None else code(_written(default))


def _call(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The call as a user writes it, with the type of the result."""
    returns = "" if function.name == "__init__" else f" -> {_written(_quoted(function.returns))}"
    arguments = _text(ast.unparse(_without_types(function.args))).removeprefix("self").removeprefix(", ")
    waits = "await " if isinstance(function, ast.AsyncFunctionDef) else ""
    call = f"{waits}{name}({arguments}){returns}"
    if len(call) > _LONGEST_CALL:
        lines = fill(arguments, _LONGEST_CALL, initial_indent="    ", subsequent_indent="    ")
        call = f"{waits}{name}(\n{lines}\n){returns}"
    return f"```py\n{call}\n```"


def _without_types(arguments: ast.arguments) -> ast.arguments:
    for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if each is not None:
            each.annotation = None
    return arguments


def interface(name: str, rows: Rows) -> str:
    """The public methods and properties of a class. The last column is written by hand."""
    cells = []
    for member, value in vars(_INTERFACES[name]).items():
        if member.startswith("_"):
            continue
        function = _function(value.fget if isinstance(value, property) else value)
        call = (
            member if isinstance(value, property) else f"{member}({', '.join(p for p, _, _ in _parameters(function))})"
        )
        waits = "await " if isinstance(function, ast.AsyncFunctionDef) else ""
        first = code(f"{waits}{call}")
        cells.append((first, _type(function.returns), rows.text_of(first)))
    return table(("member", "returns", "meaning"), cells)


# ── classes ───────────────────────────────────────────────────────────────────────────────────────────────


def members(name: str, rows: Rows) -> str:
    """The fields and properties of a class, with their types and defaults. The last column is written by hand."""
    cells = [
        (code(member), _type(annotation), default, rows.text_of(code(member)))
        for member, annotation, default in _fields(CLASSES[name])
    ]
    return table(("member", "type", "default", "meaning"), cells)


def _fields(kind: type[Any]) -> Iterator[tuple[str, ast.expr | None, str]]:
    """The name, the annotation and the default of each field and each property of a class."""
    (parsed,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(parsed, ast.ClassDef)
    for each in parsed.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, each.annotation, "required" if each.value is None else code(_written(each.value))
        elif isinstance(each, ast.FunctionDef) and any(ast.unparse(mark) == "property" for mark in each.decorator_list):
            yield each.name, each.returns, "computed"


def _type(annotation: ast.expr | None) -> str:
    """A type for readers: `str` or `None`."""
    return _either([code(each) for each in _alternatives(_quoted(annotation))])


def _either(texts: Sequence[str]) -> str:
    """The texts as a list in a sentence: a, b or c."""
    return " or ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else texts[0]


def _alternatives(annotation: ast.expr) -> list[str]:
    if isinstance(annotation, ast.BinOp):
        return [*_alternatives(annotation.left), *_alternatives(annotation.right)]
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return [_written(each) for each in getattr(annotation.slice, "elts", [annotation.slice])]
    return [_written(annotation)]


def _quoted(annotation: ast.expr | None) -> ast.expr:
    """The expression in an annotation that is written as a string."""
    assert annotation is not None
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _written(expression: ast.expr) -> str:
    return _text(ast.unparse(expression))


def _text(source: str) -> str:
    """Source code with double quotes, and with a call instead of a constant that only this package uses."""
    return _CONSTANT.sub(lambda name: _CONSTANTS[name[0]], re.sub(r"'([^'\"]*)'", r'"\1"', source))


# ── tables of the gate ────────────────────────────────────────────────────────────────────────────────────


def names(_argument: str, rows: Rows) -> str:
    """The names that `from oncegate import …` offers. The last column is written by hand."""
    return table(("name", "meaning"), [(code(name), rows.text_of(code(name))) for name in oncegate.__all__])


def options(_argument: str, _rows: Rows) -> str:
    """The options of `Gate`. In Python, None has the meaning of `off` in settings."""
    types = {name: _type(annotation) for name, annotation, _ in _fields(GateOptions)}
    cells = [
        (
            code(name),
            _either([code(_default(each)) for each in option.choices]) if option.kind == "choice" else types[name],
            code(_default(option.default)),
            option.doc.replace("`off`", "`None`"),
        )
        for name, option in OPTIONS.items()
    ]
    return table(("option", "type", "default", "meaning"), cells)


def _default(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def choices(_argument: str, rows: Rows) -> str:
    """Each choice of each option that has choices. The last column is written by hand."""
    cells = []
    for name, option in OPTIONS.items():
        for choice in option.choices if option.kind == "choice" else ():
            first = code(f'{name}="{choice}"')
            cells.append((first, "yes" if choice == option.default else "", rows.text_of(first)))
    return table(("choice", "default", "meaning"), cells)


def statuses(_argument: str, rows: Rows) -> str:
    """The statuses of an outcome. The last column is written by hand."""
    cells = [(code(name), *_answers(name), rows.text_of(code(name))) for name in _ordered_statuses()]
    return table(("status", "acknowledged", "HTTP", "meaning"), cells)


def status_summary(rows: Rows) -> str:
    """The statuses for the README, with the meanings of docs/reference/outcome.md."""
    cells = [(code(name), rows.text_of(code(name)), *_answers(name)) for name in _ordered_statuses()]
    return table(("status", "meaning", "acknowledged", "HTTP"), cells)


def _ordered_statuses() -> list[Status]:
    """The statuses, those that are acknowledged first."""
    return sorted(STATUSES, key=lambda name: not STATUSES[name].acked)


def _answers(status: Status) -> tuple[str, str]:
    return "yes" if STATUSES[status].acked else "no", str(STATUSES[status].http)


def status_counters(_argument: str, _rows: Rows) -> str:
    """How each status is counted."""
    cells = [
        (code(name), code(f"event.{name}"), code(rule.figure) if rule.figure else "", "yes" if rule.is_error else "no")
        for name, rule in STATUSES.items()
    ]
    return table(("status", "counter of `gate.counts`", "figure of a worker", "error in a trace"), cells)


def kinds(_argument: str, rows: Rows) -> str:
    return table(("kind", "meaning"), [(code(kind), rows.text_of(code(kind))) for kind in get_args(Kind)])


def causes(_argument: str, _rows: Rows) -> str:
    return table(("cause", "meaning"), [(code(f"Cause.{cause.name}"), cause.value) for cause in Cause])


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────

STRATEGIES: Final = (
    "keys.auto",
    "keys.event_id",
    "keys.webhook_id",
    "keys.content",
    'keys.content(exclude="sentAt")',
    'keys.fields("call", "at")',
    'keys.fields("call", "at", round="1m")',
    'keys.once_per("survey", "call")',
    'keys.state_change("500ms")',
    "keys.first(keys.event_id, keys.content)",
    'lambda event: event.body["call"]',
)
_SAMPLE: Final = {
    "id": "evt-1",
    "type": "call.ended",
    "conversationId": "c-1",
    "call": 7,
    "at": "2026-02-03T04:05:06Z",
    "sentAt": "2026-02-03T04:05:07Z",
    "timestamp": "2026-02-03T04:05:06Z",
}


def strategies(_argument: str, rows: Rows) -> str:
    """Each kind of strategy, and whether its keys bind content. The last column is written by hand."""
    cells = [
        (code(written), "yes" if key.binds else "no", rows.text_of(code(written)))
        for written, key in sample_keys().items()
    ]
    return table(("strategy", "binds content", "the key is made of"), cells)


def sample_keys() -> dict[str, Key]:
    """The key of one event under each of the STRATEGIES."""
    (event,) = with_webhook_id(read(_SAMPLE), "msg_1")
    written = {each: eval(each, {"keys": keys}) for each in STRATEGIES}  # noqa: S307  # the constants above
    return {each: keys.strategy(strategy)(event) for each, strategy in written.items()}


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────


def error_tree(_argument: str, _rows: Rows) -> str:
    drawn = [line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    return "\n".join(["```text", *drawn, "```"])


def error_list(_argument: str, _rows: Rows) -> str:
    """Each error, with the built-in exceptions that also catch it."""
    return "\n".join(_error(each) for each in _errors())


def _errors() -> list[type[BaseException]]:
    return [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]


def _error(error: type[BaseException]) -> str:
    also = [base.__name__ for base in error.__bases__ if base.__module__ == "builtins" and base is not Exception]
    text = (
        (inspect.getdoc(error) or "").partition("\n\n")[0] if error is errors.OncegateError else inspect.getdoc(error)
    )
    caught = f" (subclass of `{also[0]}`)" if also else ""
    return wrapped(f"- `{error.__name__}`{caught}: {text}", "  ")
