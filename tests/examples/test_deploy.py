"""The example of a deployment: the service runs with its settings, behind its proxies, and under its unit."""

import base64
import hashlib
import hmac
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]

from oncegate import Gate
from oncegate.cli import exit_codes, handlers
from oncegate.durations import microseconds
from oncegate.service import server, service
from oncegate.settings.schema import SETTINGS
from tests.debian import packaged
from tests.doctor import commands
from tests.examples.readme import EXAMPLES
from tests.service.running import certificate
from tests.stores.postgres_server import PostgresServer
from tests.stores.servers import ServerProcess, free_port, missing, until

FOLDER = EXAMPLES / "deploy"
PAGE = (EXAMPLES.parent / "docs" / "guide" / "deploy.md").read_text()
UNIT = (FOLDER / "oncegate.service").read_text()
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
BIN = Path(sys.executable).parent
SECRET = "a-long-random-secret-0123"  # noqa: S105
DRAIN = microseconds(SETTINGS["serve.drain_within"].default) / 1e6
CLOSE = 4.0  # seconds from the end of the drain time to the exit
SENDER_TIMEOUT = 10.0  # of Genesys Open Messaging
BUSY = 5.0  # what a busy machine may add


def message(number: int, text: str = "hello") -> bytes:
    channel = {"id": "ch-1", "platform": "Open", "messageId": f"om-{number}", "time": "2026-02-03T04:05:06.123Z"}
    body = {"id": f"om-{number}", "type": "Text", "text": text, "direction": "Outbound", "conversationId": "c-1"}
    return json.dumps({**body, "channel": channel}).encode()


def signed(body: bytes) -> dict[str, str]:
    code = hmac.new(SECRET.encode(), body, hashlib.sha256).digest()
    return {"X-Hub-Signature-256": f"sha256={base64.b64encode(code).decode()}"}


class Deployed:
    """The service of the unit, with the settings of the example. Only folders and ports differ."""

    def __init__(
        self,
        folder: Path,
        settings: str,
        environ: dict[str, str] | None = None,
        handler: str | None = None,
        port: int | None = None,
    ) -> None:
        self.folder = folder
        for name in ("genesys", "genesys.secret"):
            (folder / name).write_text(f"{SECRET}\n")
        (folder / "messages.py").write_text(handler or (FOLDER / "messages.py").read_text())
        self.port, self.metrics_port = port or free_port(), free_port()
        replaced = {
            "/etc/oncegate/": f"{folder}/",
            "/run/secrets/oncegate/": f"{folder}/",
            "/var/lib/oncegate/": f"{folder}/",
            "8080": str(self.port),
            "9464": str(self.metrics_port),
        }
        for written, value in replaced.items():
            settings = settings.replace(written, value)
        (folder / "oncegate.toml").write_text(settings)
        command = [self.placed(word) for word in shlex.split(directive("ExecStart"))]
        self._output = (folder / "output").open("a+")
        self._env = {**os.environ, **(environ or {})}
        self.process = subprocess.Popen(
            command, cwd=folder, env=self._env, stdout=self._output, stderr=subprocess.STDOUT
        )
        until(lambda: "listens on" in self.log() or self.process.poll() is not None, "the service")
        assert self.process.poll() is None, self.log()

    def placed(self, word: str) -> str:
        return word.replace("/opt/oncegate/venv/bin", str(BIN)).replace("/etc/oncegate", str(self.folder))

    def log(self) -> str:
        return (self.folder / "output").read_text()

    def get(self, path: str, port: int | None = None) -> int:
        return httpx2.get(f"http://127.0.0.1:{port or self.port}{path}", trust_env=False, verify=False).status_code

    def post(self, body: bytes) -> str:
        url = f"http://127.0.0.1:{self.port}/events/genesys"
        answer = httpx2.post(url, content=body, headers=signed(body), trust_env=False, verify=False)
        status: str = answer.json()["status"]
        return status

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self._output.close()
        return code


def directive(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    deployed = Deployed(tmp_path, (FOLDER / "oncegate.toml").read_text())
    yield deployed
    deployed.stop()


# ── the service and its unit ──────────────────────────────────────────────────────────────────────────────


def test_the_first_request(tmp_path: Path) -> None:
    """`systemctl start` returns before the service listens. The command of the guide waits for the service."""
    (command,) = re.findall(r"^curl .*/readyz$", PAGE, re.MULTILINE)
    port = free_port()
    request = subprocess.Popen(shlex.split(command.replace("8080", str(port))), stdout=subprocess.DEVNULL)
    deployed = Deployed(tmp_path, (FOLDER / "oncegate.toml").read_text(), port=port)
    try:
        assert request.wait(30) == 0
    finally:
        request.kill()
        deployed.stop()


def test_the_settings(deployed: Deployed) -> None:
    """The service starts with the settings of the example, runs a message once, and stops with exit code 0."""
    assert [deployed.post(message(1)) for _ in range(2)] == ["accepted", "duplicate"]
    assert [deployed.get(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 404]
    assert deployed.get("/metrics", deployed.metrics_port) == 200
    assert all(line.startswith("{") for line in deployed.log().splitlines())
    until(lambda: '"processed"' in deployed.log(), "the line of the event")
    assert deployed.stop() == exit_codes.OK


def test_the_unit_is_valid(tmp_path: Path) -> None:
    """systemd accepts the unit without a warning, also with the lines of the page for port 443. It reports a directive
    that does not exist."""
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze", "apt-get install systemd")
    unit = UNIT.replace("/opt/oncegate/venv/bin", str(BIN))
    assert verified(tmp_path / "oncegate.service", unit) == ""
    (added,) = re.findall(r"```ini\n(.+?)```", PAGE, re.DOTALL)
    assert verified(tmp_path / "direct.service", f"{unit}\n{added}") == ""
    assert "Restarts" in verified(tmp_path / "wrong.service", unit.replace("Restart=", "Restarts="))


def verified(path: Path, unit: str) -> str:
    path.write_text(unit)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)  # noqa: S607
    return done.stderr


def test_the_unit_stops_in_time() -> None:
    """The unit and the pod give the service the time to drain and to close. An invalid setting is not retried."""
    assert float(directive("TimeoutStopSec")) >= DRAIN + CLOSE
    assert directive("RestartPreventExitStatus") == str(exit_codes.USAGE)
    assert int(directive("LimitNOFILE")) == server._MAX_FILES
    pod = MANIFESTS[1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (command, pod["terminationGracePeriodSeconds"] >= float(pause) + DRAIN + CLOSE) == ("sleep", True)


def test_an_invalid_setting(tmp_path: Path) -> None:
    """The exit code of an invalid setting is the one that the unit does not restart."""
    (tmp_path / "oncegate.toml").write_text("stor = 1")
    command = [BIN / "oncegate", "serve", "--config", "oncegate.toml"]
    done = subprocess.run([str(word) for word in command], cwd=tmp_path, capture_output=True, timeout=30)
    assert done.returncode == int(directive("RestartPreventExitStatus"))


def test_the_time_to_stop(tmp_path: Path) -> None:
    """With a handler that does not return, the service ends CLOSE after its drain time at the latest."""
    assert service._CLOSE_TIMEOUT + handlers._PRINT_WITHIN <= CLOSE
    settings = (
        (FOLDER / "oncegate.toml").read_text().replace("[serve]", '[serve]\nmode = "inline"\ndrain_within = "1s"')
    )
    handler = "import pathlib, time\ndef on_message(event):\n    pathlib.Path('started').touch()\n    time.sleep(100)\n"
    deployed = Deployed(tmp_path, settings, handler=handler)
    with closing(deployed.connect()) as connection:
        body = message(1)
        head = {"Host": "localhost", "Content-Length": str(len(body)), **signed(body)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        connection.sendall(f"POST /events/genesys HTTP/1.1\r\n{lines}\r\n".encode() + body)
        until((tmp_path / "started").exists, "the handler")
        start = time.monotonic()
        assert deployed.stop() == exit_codes.FAILED
    assert time.monotonic() - start < 1 + CLOSE + BUSY


# ── proxies ───────────────────────────────────────────────────────────────────────────────────────────────


def nginx(folder: Path, target: int, port: int) -> list[str]:
    """The command that starts nginx with the example. Only ports, certificates and the folder of its files differ."""
    program = shutil.which("nginx") or packaged("nginx", "usr/sbin/nginx")
    if program is None:
        missing("nginx", "apt-get install nginx")
    text = (FOLDER / "nginx.conf").read_text()
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{target}").replace("listen 443", f"listen 127.0.0.1:{port}")
    text = re.sub(r"(ssl_certificate) \S+;", rf"\1 {folder}/cert.pem;", text)
    text = re.sub(r"(ssl_certificate_key) \S+;", rf"\1 {folder}/key.pem;", text)
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in names)
    main = f"daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log stderr;\n{owner()}events {{}}\n"
    (folder / "nginx.conf").write_text(f"{main}http {{\naccess_log off;\n{temporary}{text}}}\n")
    return [str(program), "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def owner() -> str:
    """Root starts workers of nginx as nobody, who cannot read the folders of a test."""
    return "user root;\n" if os.geteuid() == 0 else ""


def caddy(folder: Path, target: int, port: int) -> list[str]:
    """The command that starts Caddy with the example. It uses the certificate of the test, not one from a CA."""
    program = shutil.which("caddy")
    assert program is not None
    text = (FOLDER / "Caddyfile").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{target}")
    site = f"https://127.0.0.1:{port} {{\n\ttls {folder}/cert.pem {folder}/key.pem"
    text = text.replace("events.example.com {", site)
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{text}")
    return [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


# Caddy is not downloaded: nginx already shows what a proxy must do.
PROXIES = [nginx, *([caddy] if shutil.which("caddy") else [])]


@pytest.fixture(params=PROXIES, ids=[each.__name__ for each in PROXIES])
def proxied(
    deployed: Deployed, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., httpx2.Client]]:
    """Clients of the proxy. A client may send from another address of this machine."""
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    _, context = certificate(folder)
    environment = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    process = ServerProcess(request.param(folder, deployed.port, port), folder, environment)
    clients = []

    def client(address: str = "127.0.0.1") -> httpx2.Client:
        transport = httpx2.HTTPTransport(verify=context, local_address=address)
        clients.append(httpx2.Client(base_url=f"https://127.0.0.1:{port}", transport=transport, timeout=20))
        return clients[-1]

    def answers() -> bool:
        try:
            return client().get("/").status_code == 404
        except httpx2.TransportError:
            return False

    until(lambda: answers() or not process.running, "the proxy")
    assert process.running, (folder / "output.log").read_text()
    yield client
    for each in clients:
        each.close()
    process.stop()


def test_a_message_through_the_proxy(deployed: Deployed, proxied: Callable[..., httpx2.Client]) -> None:
    """Signed messages arrive unchanged and run once; the largest body passes, and a larger one gets 413."""
    client, limit = proxied(), SETTINGS["serve.max_body"].default
    for text in ("hello", "caf\u00e9 \u2603", "x" * (limit - 400)):
        body = message(len(text), text)
        answers = [client.post("/events/genesys", content=body, headers=signed(body)) for _ in range(2)]
        assert [answer.json()["status"] for answer in answers] == ["accepted", "duplicate"]
    large = b"x" * (limit + 1)
    assert client.post("/events/genesys", content=large, headers=signed(large)).status_code == 413


def test_what_is_public(proxied: Callable[..., httpx2.Client]) -> None:
    """Only the routes for events can be reached through the proxy."""
    for path in ("/metrics", "/readyz", "/healthz", "/openapi.json", "/", "/eventsx", "/events/../metrics"):
        assert proxied().get(path).status_code == 404, path
    assert proxied().post("/events/genesys", content=b"{}").status_code == 401


def test_the_address_of_the_sender(deployed: Deployed, proxied: Callable[..., httpx2.Client]) -> None:
    """The log has the address that connected to the proxy, not an address that the sender claims to have."""
    forged = {"X-Forwarded-For": "203.0.113.9"}
    assert proxied("127.0.0.2").post("/events/genesys", content=b"{}", headers=forged).status_code == 401
    until(lambda: "127.0.0.2" in deployed.log(), "the line of the refused request")
    assert "203.0.113.9" not in deployed.log()


def test_the_service_is_away(deployed: Deployed, proxied: Callable[..., httpx2.Client]) -> None:
    """While the service hangs or is stopped, the proxy answers with a 5xx before the sender stops waiting."""
    body = message(1)
    assert proxied().post("/events/genesys", content=body, headers=signed(body)).status_code == 200
    deployed.process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    try:
        assert proxied().post("/events/genesys", content=body, headers=signed(body)).status_code == 504
        assert time.monotonic() - start < SENDER_TIMEOUT + BUSY
    finally:
        deployed.process.send_signal(signal.SIGCONT)
    deployed.stop()
    assert proxied().post("/events/genesys", content=body, headers=signed(body)).status_code == 502


def test_the_times_of_the_proxies() -> None:
    """A proxy answers before the sender stops waiting, and closes an idle connection before the service does: otherwise
    a request may be sent on a connection that the service closes."""
    answers = {"nginx.conf": r"proxy_read_timeout (\d+)s", "Caddyfile": r"response_header_timeout (\d+)s"}
    idle = {"nginx.conf": r"keepalive_timeout (\d+)s", "Caddyfile": r"keepalive (\d+)s"}
    for name, pattern in answers.items():
        text = (FOLDER / name).read_text()
        assert [int(found) < SENDER_TIMEOUT for found in re.findall(pattern, text)] == [True]
        assert [int(found) < server._KEEP_ALIVE for found in re.findall(idle[name], text)] == [True]


def test_two_processes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
    """Two processes share the file. While one of them is stopped, nginx sends all requests to the other one."""
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    settings = (FOLDER / "oncegate.toml").read_text()
    one = Deployed(tmp_path_factory.mktemp("one"), settings)
    request.addfinalizer(one.stop)
    shared = settings.replace("/var/lib/oncegate/", f"{one.folder}/")
    two = Deployed(tmp_path_factory.mktemp("two"), shared)
    request.addfinalizer(two.stop)
    _, context = certificate(folder)
    command = nginx(folder, one.port, port)
    text = (folder / "nginx.conf").read_text()
    first = f"server 127.0.0.1:{one.port};"
    (folder / "nginx.conf").write_text(text.replace(first, f"{first} server 127.0.0.1:{two.port};"))
    process = ServerProcess(command, folder)
    request.addfinalizer(process.stop)
    with httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=context, trust_env=False) as client:
        until(lambda: _is_up(client), "the proxy")

        def send(number: int) -> str:
            answer = client.post("/events/genesys", content=message(number), headers=signed(message(number)))
            status: str = answer.json()["status"]
            return status

        assert sorted(send(number) for number in range(4) for _ in range(2)) == ["accepted"] * 4 + ["duplicate"] * 4
        until(lambda: all('"event_id"' in each.log() for each in (one, two)), "events at both processes")
        assert one.stop() == exit_codes.OK
        assert [send(number) for number in range(8)] == ["duplicate"] * 4 + ["accepted"] * 4


def _is_up(client: httpx2.Client) -> bool:
    try:
        return client.get("/").status_code == 404
    except httpx2.TransportError:
        return False


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_commands_exist() -> None:
    """Every `oncegate` command on the page exists, with its options."""
    shown = re.findall(r"(?:/opt/oncegate/venv/bin/|`)(oncegate [^`\n]+)", PAGE)
    assert len(shown) > 6
    for line in shown:
        commands.check(line.replace("--config /etc/oncegate/oncegate.toml ", ""))


def test_commands_of_an_operator(deployed: Deployed) -> None:
    """The commands on the page that inspect an installation succeed while the service runs."""
    deployed.post(message(1))
    lines = re.findall(r"^ *sudo -u oncegate (/opt/oncegate/venv/bin/oncegate .+)$", PAGE, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        command = [deployed.placed(word) for word in shlex.split(line)]
        done = subprocess.run(command, cwd=deployed.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done


def test_backup(deployed: Deployed) -> None:
    """The command on the page copies the store while the service runs."""
    if shutil.which("sqlite3") is None:
        missing("sqlite3", "apt-get install sqlite3")
    deployed.post(message(1))
    until(lambda: '"processed"' in deployed.log(), "the line of the event")
    (command,) = re.findall(r"sudo -u oncegate (sqlite3 .+)", PAGE)
    words = shlex.split(command.replace("/var/lib/oncegate", str(deployed.folder)))
    subprocess.run(words, check=True, timeout=60)
    with closing(Gate(f"sqlite:///{deployed.folder}/backup.db", namespace="genesys")) as gate:
        assert gate.run(message(1), lambda event: None).status == "duplicate"


def test_a_truncated_log(deployed: Deployed) -> None:
    """logrotate with copytruncate loses no later line: the service appends to the file."""
    assert "copytruncate" in PAGE
    deployed.post(message(1))
    until(lambda: "om-1" in deployed.log(), "the line of the first event")
    until(lambda: '"processed"' in deployed.log(), "the line of the first event")
    os.truncate(deployed.folder / "output", 0)
    deployed.post(message(2))
    until(lambda: "om-2" in deployed.log(), "the line of the second event")
    assert deployed.log().startswith('{"time":')


def test_the_probes_of_the_page() -> None:
    """The page shows the probes of the manifest."""
    (container,) = MANIFESTS[1]["spec"]["template"]["spec"]["containers"]
    (shown,) = re.findall(r"```yaml\n(.+?)```", PAGE, re.DOTALL)
    for name, probe in yaml.safe_load(shown).items():
        assert container[name] == probe


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_pod(postgres: PostgresServer, tmp_path: Path) -> None:
    """The settings of the pods run on Postgres: two processes share the events, and the probes are answered there."""
    settings, deployment, balancer = MANIFESTS
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        Path(word).name if "/bin/" in word else word for word in shlex.split(directive("ExecStart"))
    ]
    (variable,) = container["env"]
    store = {variable["name"]: f"{postgres.url()}?oncegate_schema=deploy"}
    toml = settings["data"]["oncegate.toml"].replace('"0.0.0.0"', '"127.0.0.1"')
    pods = []
    try:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            pods.append(Deployed(tmp_path / name, toml, store))
        assert [pod.post(message(1)) for pod in pods] == ["accepted", "duplicate"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert pods[1].get(container[probe]["httpGet"]["path"]) == 200
            assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    finally:
        for pod in pods:
            pod.stop()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert balancer["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
