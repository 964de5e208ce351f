"""A person who uses the pages of a site: opens pages, sends forms, and waits for tasks."""

import threading
import time
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from oncegate.console.pages import ACTIONS, PAGES
from oncegate.console.requests import PREFIX, Request
from oncegate.console.site import Site
from oncegate.console.tasks import Task
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.stores.base import Store
from tests.console.pages.journals import Shown, get


class Person:
    def __init__(self, site: Site, name: str = "Ada") -> None:
        self.site = site
        self.name = name

    def open(self, address: str) -> Shown:
        return get(PAGES[address.removeprefix(PREFIX).partition("?")[0]], self.site, address)

    def send(self, path: str, form: dict[str, str]) -> HttpAnswer:
        return ACTIONS[path](self.site, Request("POST", path, {}, form, "192.0.2.1", self.name, "csrf-token"))

    def confirm(self, address: str, **more: str) -> Task:
        """Open a page that asks for confirmation, and send its form. Returns the task that was started."""
        answer = self.send(*form_of(self.open(address), **more))
        assert answer.code == 303, answer.body
        address = dict(answer.headers)[b"location"].decode()
        task = self.site.tasks.find(dict(parse_qsl(urlsplit(address).query))["id"])
        assert task is not None
        return task

    def do(self, address: str, **more: str) -> Task:
        """Like `confirm`, and wait for the end of the task."""
        task = self.confirm(address, **more)
        wait_for(lambda: not task.is_running)
        return task


def form_of(shown: Shown, **more: str) -> tuple[str, dict[str, str]]:
    """The path and the fields of the form that changes something."""
    (form,) = [each for each in shown.find("form", method="post") if not each["action"].endswith("/logout")]
    fields = {each["name"]: each["value"] for each in shown.find("input", type="hidden") if each["name"] != "csrf"}
    return form["action"].removeprefix(PREFIX), {**fields, **more}


def wait_for(condition: Callable[[], Any], within: float = 20) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Hooked:
    """A store that calls a function before each batch of records that are redriven, dropped, reset or erased."""

    def __init__(self, store: Store, before: Callable[[], None]) -> None:
        self._store = store
        self._before = before

    def __getattr__(self, name: str) -> Any:
        if name in ("redrive", "reset", "forget"):
            self._before()
        return getattr(self._store, name)


class Gatekeeper:
    """Lets the batches that the tasks of a site change pass one by one."""

    def __init__(self, site: Site) -> None:
        self.passes = threading.Semaphore(0)
        self.reached = 0
        hooked(site, self._wait)

    def _wait(self) -> None:
        self.reached += 1
        assert self.passes.acquire(timeout=20)


def hooked(site: Site, before: Callable[[], None]) -> None:
    """Call a function before each batch that a task of this site changes."""
    site._open_store = lambda store=site.store: cast(Store, Hooked(store, before))
    site._store = None
