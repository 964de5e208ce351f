"""Show and execute the steps of a plan, for the commands that create parts in AWS or Genesys Cloud."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from oncegate.cli.options import confirm
from oncegate.cli.output import Progress, print_text, show_json, show_plain_table
from oncegate.durations import times
from oncegate.infra.platform import Platform, Step

_DONE = {
    "create": "created",
    "wait": "found",
    "change": "changed",
    "keep": "kept",
    "delete": "deleted",
    "leave": "left",
}
_WIDTH = max(map(len, _DONE.values()))
_KIND_WIDTH = len("permission")
_HEADERS = ("plan", "part", "name", "why")


def show_plan(steps: Sequence[Step], output: str) -> None:
    if output == "json":
        show_json({"parts": [step_fields(step) for step in steps]})
        return
    rows = [(step.action, step.part.kind, step.part.name, step.why or None) for step in steps]
    show_plain_table(_HEADERS, rows)


def carry_out_all(steps: Sequence[tuple[Platform[Any], Step]], progress: Progress, output: str = "text") -> None:
    """Execute the steps, each on its platform, and print each step when it is done."""
    width = max([_KIND_WIDTH, *(len(step.part.kind) for _, step in steps)])
    for platform, step in steps:
        platform.carry_out(step)
        progress.clear()
        if output == "text":
            why = f"  ({step.why})" if step.why else ""
            print_text(f"{_DONE[step.action].ljust(_WIDTH)}  {step.part.kind.ljust(width)}  {step.part.name}{why}")


def remove_all(
    steps: Sequence[tuple[Platform[Any], Step]],
    progress: Progress,
    *,
    place: str,
    nothing: str,
    yes: bool,
    dry_run: bool,
) -> bool:
    """Show the steps of a removal, ask, and delete the parts. Returns whether parts were deleted. `nothing` says that
    there is nothing to delete, and where."""
    if steps:
        show_plan([step for _, step in steps], "text")
    deletions = [(platform, step) for platform, step in steps if step.action == "delete"]
    if not deletions:
        print_text(f"Nothing to delete: {nothing}.")
    if not deletions or dry_run:
        return False
    if not yes:
        confirm_deletion(len(deletions), place)
    carry_out_all(deletions, progress)
    return True


def print_kept(steps: Sequence[Step], output: str, how: str) -> None:
    """Say that parts of an earlier run are left, and how to delete them."""
    kept = [step for step in steps if step.action == "leave"]
    if kept and output == "text":
        print_text(
            f"An earlier run created {times(len(kept), 'part')} of {kept[0].part.deployment} that these options do not"
            f" include. They were not changed; {how} to delete them."
        )


def summary(steps: Sequence[Step]) -> str:
    changed, deleted = (
        sum(step.action in actions for step in steps) for actions in (("create", "change"), ("delete",))
    )
    if not changed and not deleted:
        return "Nothing was changed: all parts match the options."
    text = f"{times(changed, 'part')} created or changed"
    return f"{text}, {deleted} deleted." if deleted else f"{text}."


def confirm_deletion(count: int, place: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "cannot ask for confirmation because stdin is not a terminal; check the list, and add --yes to delete"
        )
    confirm(f"Delete {times(count, 'part')} in {place}? Their data will be lost.")


def step_fields(step: Step) -> dict[str, str]:
    part = step.part
    return {"action": step.action, "part": part.kind, "name": part.name, "arn": part.arn, "why": step.why}
