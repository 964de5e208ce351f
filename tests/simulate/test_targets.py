"""The targets of simulated traffic: HTTP and files."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from oncegate.errors import SettingError, TargetError
from oncegate.simulate.targets import File, Http, open_target
from oncegate.simulate.traffic import Plan, deliveries
from tests.simulate.parts import delivered, plan, sent
from tests.stores.servers import free_port

Reply: TypeAlias = tuple[int, dict[str, str]]


OK: Final[Reply] = (200, {})


DROPPED: Final[Reply] = (0, {})


class Receiver:
    """An HTTP server with scripted answers, then 200. The code 0 drops the connection."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.always: Reply = OK
        self.bodies: list[bytes] = []
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/events"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                code, headers = receiver.answer(body)
                if not code:
                    self.close_connection = True
                    return
                self.send_response(code)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as it is called there
                pass

        return Handler

    def answer(self, body: bytes) -> Reply:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.bodies.append(body)
            self.times.append(time.monotonic())
            answer = self.script.pop(0) if self.script else self.always
        time.sleep(0.002)
        with self._lock:
            self.at_once -= 1
        return answer

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


class TestHttp:
    def test_each_is_posted(self, receiver: Receiver, tmp_path: Path) -> None:
        """Every delivery is one request with the same bytes, in order."""
        summary = sent(Http(receiver.url), plan(20), tmp_path / "truth.jsonl")
        assert receiver.bodies == [each.copy.raw for each in deliveries(plan(20))]
        assert summary.count(fate="taken") == summary.count() == len(receiver.bodies)

    def test_sent_again(self, receiver: Receiver, tmp_path: Path) -> None:
        """After a temporary failure a delivery is retried, not before Retry-After; the truth file has the number of
        tries."""
        receiver.script = [OK, (503, {"Retry-After": "1"}), (429, {}), (500, {}), DROPPED]
        summary = sent(Http(receiver.url), plan(2, reemit=0, rewrap=0, replay=0), tmp_path / "truth.jsonl")
        assert summary.again == 4
        assert summary.count(fate="taken") == summary.count()
        assert receiver.times[2] - receiver.times[1] >= 1.0
        assert [each.tries for each in delivered(tmp_path)][:2] == [1, 5]
        assert len(set(receiver.bodies[1:6])) == 1

    def test_a_time_to_come_again(self, receiver: Receiver, tmp_path: Path) -> None:
        """Retry-After may be a date; an invalid value is ignored."""
        receiver.script = [(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), (503, {"Retry-After": "soon"})]
        summary = sent(Http(receiver.url), plan(1), tmp_path / "truth.jsonl")
        assert (summary.again, summary.count(fate="taken")) == (2, summary.count())

    def test_refused(self, receiver: Receiver, tmp_path: Path) -> None:
        """A permanent rejection is not retried."""
        receiver.always = (400, {})
        summary = sent(Http(receiver.url), plan(5), tmp_path / "truth.jsonl")
        assert summary.count(fate="refused") == summary.count() == len(receiver.bodies)
        assert summary.reasons == {"HTTP 400": summary.count()}
        assert {each.fate for each in delivered(tmp_path)} == {"refused"}

    def test_patience_ends(self, receiver: Receiver, tmp_path: Path) -> None:
        """A delivery that is not accepted in time is given up, and the next one is sent."""
        receiver.always = (503, {"Retry-After": "30"})
        summary = sent(Http(receiver.url), plan(3), tmp_path / "truth.jsonl", patience=0.1)
        assert summary.count(fate="gave up") == summary.count() == len(receiver.bodies)
        assert {each.fate for each in delivered(tmp_path)} == {"gave up"}

    def test_nobody_there(self, tmp_path: Path) -> None:
        """If the target never answered, the error comes at once, without retries."""
        with pytest.raises(TargetError, match=r"cannot reach http://127.0.0.1:\d+/events .*; check the address"):
            sent(Http(f"http://127.0.0.1:{free_port()}/events"), plan(3), tmp_path / "truth.jsonl")

    def test_side_by_side(self, receiver: Receiver, tmp_path: Path) -> None:
        """With parallel requests all deliveries arrive, and the truth file has each."""
        receiver.script = [OK, (503, {}), OK, (503, {})]
        fast = Plan(events=60, rate=100_000, seed=5)
        summary = sent(Http(receiver.url, 8), fast, tmp_path / "truth.jsonl", parallel=8)
        assert 1 < receiver.most_at_once <= 8
        assert summary.count(fate="taken") == summary.count() == len(delivered(tmp_path))
        assert set(receiver.bodies) == {each.copy.raw for each in deliveries(fast)}


class TestTargets:
    @pytest.mark.parametrize("url", ["", "file://", "ftp://there", "http://", "sqs:queue", "events.jsonl"])
    def test_nowhere(self, url: str) -> None:
        """An unknown target is refused with the list of targets."""
        with pytest.raises(SettingError, match=r"unknown target .*; use eventbridge://BUS, sqs://QUEUE"):
            open_target(url)

    @pytest.mark.parametrize("url", ["http://[", "http://h:99999/", "sqs://[", "eventbridge://b:x"])
    def test_no_url(self, url: str) -> None:
        """An invalid URL is refused."""
        with pytest.raises(SettingError, match=r"invalid target URL .*; use eventbridge://BUS"):
            open_target(url)

    def test_a_full_disk(self, tmp_path: Path) -> None:
        """A full disk is reported."""
        with pytest.raises(TargetError, match="cannot write /dev/full: No space left"):
            sent(File("/dev/full"), plan(200), tmp_path / "truth.jsonl")

    def test_a_file(self, tmp_path: Path) -> None:
        """A path may be relative or absolute; a file that cannot be written is reported."""
        open_target(f"file://{tmp_path}/there").close()
        assert (tmp_path / "there").exists()
        with pytest.raises(TargetError, match=r"cannot write .*/no/there: No such file"):
            File(f"{tmp_path}/no/there")
