"""The pages and actions of the console, by path. A path starts after `/console`."""

from collections.abc import Callable, Mapping
from typing import Final

from oncegate.console.pages.actions import REPLAY, RESET, confirm_replay, confirm_reset, replay_event, reset_key
from oncegate.console.pages.changes import START, confirm_change, start_change
from oncegate.console.pages.conversation import conversation
from oncegate.console.pages.dead_letters import CONFIRM, dead_letters
from oncegate.console.pages.event import event
from oncegate.console.pages.events import events
from oncegate.console.pages.forgetting import ERASE, FORGET, ask_to_forget, start_dry_run, start_erasure
from oncegate.console.pages.keys import keys
from oncegate.console.pages.overview import overview
from oncegate.console.pages.settings import settings
from oncegate.console.pages.task import cancel_task, task_page
from oncegate.console.requests import Request
from oncegate.console.site import Site
from oncegate.ingress.http_answers import HttpAnswer

PageMaker = Callable[[Site, Request], HttpAnswer]

PAGES: Final[Mapping[str, PageMaker]] = {
    "/": overview,
    "/events": events,
    "/event": event,
    "/conversation": conversation,
    "/dead-letters": dead_letters,
    "/keys": keys,
    "/settings": settings,
    "/task": task_page,
    CONFIRM: confirm_change,
    FORGET: ask_to_forget,
    RESET: confirm_reset,
    REPLAY: confirm_replay,
}
ACTIONS: Final[Mapping[str, PageMaker]] = {
    START: start_change,
    "/task/cancel": cancel_task,
    FORGET: start_dry_run,
    ERASE: start_erasure,
    RESET: reset_key,
    REPLAY: replay_event,
}

__all__ = ["ACTIONS", "PAGES"]
