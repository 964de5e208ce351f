"""The page of a task."""

import json
import threading

import pytest

from oncegate.console.pages.task import task_page
from oncegate.console.requests import Request
from oncegate.console.site import Site
from oncegate.console.tasks import Task
from tests.console.pages.acting import Person, wait_for


def state(site: Site, task_id: str) -> tuple[int, dict[str, object]]:
    answer = task_page(site, Request("GET", "/task", {"id": task_id, "format": "json"}, {}))
    return answer.code, json.loads(answer.body)


def test_the_state_for_the_script(site: Site) -> None:
    """The script of the page gets the text, the count and the end."""
    go = threading.Event()

    def run(task: Task) -> None:
        task.doing, task.done, task.total = "Dropping", 5, 1_200
        assert go.wait(20)

    task = site.tasks.start("Drop", "Ada", "/console/dead-letters", run)
    wait_for(lambda: task.total is not None)
    expected = {"running": True, "text": "Dropping: 5 of 1,200.", "done": 5, "total": 1_200}
    assert state(site, task.id) == (200, expected)
    go.set()
    wait_for(lambda: not task.is_running)
    assert state(site, task.id)[1]["running"] is False


def test_an_unknown_task(site: Site) -> None:
    """After a restart, the page says where the record of the task is."""
    shown = Person(site).open("/task?id=x")
    assert (shown.code, "the record of actions on the screen Dead letters" in shown.text) == (404, True)
    assert state(site, "x") == (404, {"running": False})
    assert Person(site).send("/task/cancel", {"id": "x"}).code == 303


def test_a_task_that_raises(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """An error in a task is logged with its trace, and the page says that the task failed."""
    task = site.tasks.start("Drop", "Ada", "/console/dead-letters", lambda task: 1 / 0)  # type: ignore[arg-type]
    wait_for(lambda: not task.is_running)
    assert "The task failed. The log of the service has the reason." in Person(site).open(f"/task?id={task.id}").text
    assert "ZeroDivisionError" in caplog.text
