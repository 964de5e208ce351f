"""The alert rules for Prometheus: their format, their metrics, and the page that describes them."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from oncegate.gate.outcome import Status
from tests.debian import packaged
from tests.examples.readme import EXAMPLES
from tests.service.running import Service
from tests.stores.servers import missing

RULES = EXAMPLES / "prometheus" / "oncegate.rules.yml"
DOCS = EXAMPLES.parent / "docs"
PAGE = (DOCS / "operations.md").read_text()
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
FROM_PROMETHEUS = {"job", "instance", "le"}  # the labels that Prometheus adds, and those of a histogram's buckets
_DURATION = r"\d+(?:ms|s|m|h|d)"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each series that a service exports, by the name of the series."""
    with Service(tmp_path_factory.mktemp("service"), "--serve-mode", "inbox") as service:
        service.post({"id": "evt-1"})
        text = service.client.get("/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {name: {label for each in samples if each.name == name for label in each.labels} for name in names(samples)}


def names(samples: list[Any]) -> set[str]:
    return {sample.name for sample in samples}


def unknown(expression: str, exported: dict[str, set[str]]) -> set[str]:
    """The metrics and labels of an expression that the service does not export."""
    metrics = set(re.findall(r"\boncegate_\w+", expression))
    found = metrics - exported.keys()
    labels = set().union(*(exported.get(name, set()) for name in metrics)) | FROM_PROMETHEUS
    for name, matchers in re.findall(r"\b(oncegate_\w+)\{([^}]*)\}", expression):
        found |= set(re.findall(r"(\w+)\s*[=!]", matchers)) - exported.get(name, set())
    for listed in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression):
        found |= set(re.findall(r"\w+", listed)) - labels
    return found


def test_the_metrics_exist(exported: dict[str, set[str]]) -> None:
    """Each metric and label of each expression is exported by the service, and each status is a status."""
    for rule in ALERTS.values():
        assert re.search(r"\boncegate_", rule["expr"])
        assert unknown(rule["expr"], exported) == set(), rule["alert"]
        for statuses in re.findall(r'status=~?"([^"]+)"', rule["expr"]):
            assert set(statuses.split("|")) <= set(get_args(Status))
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            kept = [set(re.findall(r"\w+", each)) for each in re.findall(r"\bby \(([^)]*)\)", rule["expr"])]
            assert all(label in each for each in kept), (rule["alert"], label)


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("oncegate_inbox_waitin > 0", {"oncegate_inbox_waitin"}),
        ('oncegate_deliveries_total{state="failed"}', {"state"}),
        ("sum by (job, rout) (oncegate_inbox_waiting)", {"rout"}),
        ("oncegate_latency_seconds > 1", {"oncegate_latency_seconds"}),
    ],
)
def test_the_check_finds_wrong_names(expression: str, wrong: set[str], exported: dict[str, set[str]]) -> None:
    """The check itself finds wrong metrics and labels. A histogram has no series of its plain name."""
    assert unknown(expression, exported) == wrong


def test_the_format() -> None:
    """The file has the members of Prometheus' format, and each alert has a severity and leads to a section."""
    assert [group.keys() for group in GROUPS] == [{"name", "rules"}]
    assert len(ALERTS) == sum(len(group["rules"]) for group in GROUPS)
    for rule in ALERTS.values():
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Oncegate[A-Z][A-Za-z]+", rule["alert"])
        assert re.fullmatch(_DURATION, rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        file, _, section = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (EXAMPLES.parent / file).read_text(), re.MULTILINE)
        assert section in {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_page_has_each_alert(exported: dict[str, set[str]]) -> None:
    """Each metric of the page names its alerts, each alert uses the metric that names it, and each has a first step."""
    rows = re.findall(r"^\| (`oncegate_\w+`.*?) \|.*?\| (.+) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 7
    named = {alert: metrics for metrics, text in rows for alert in re.findall(r"`(Oncegate\w+)`", text)}
    assert named.keys() == ALERTS.keys()
    for metrics, text in rows:
        assert re.search(r"`Oncegate\w+`", text), f"{metrics} names no alert"
    for alert, metrics in named.items():
        assert any(metric in ALERTS[alert]["expr"] for metric in re.findall(r"`(oncegate_\w+)`", metrics)), alert
    steps = re.findall(r"^\| (`Oncegate\w+`.*?) \| .+ \|$", PAGE, re.MULTILINE)
    assert {alert for row in steps for alert in re.findall(r"`(\w+)`", row)} == ALERTS.keys()


def test_the_scrape_configuration_is_yaml() -> None:
    """The configuration on the page loads the file, and scrapes the default port of the metrics."""
    (shown,) = re.findall(r"```yaml\n(rule_files.+?)```", PAGE, re.DOTALL)
    configuration = yaml.safe_load(shown)
    assert Path(configuration["rule_files"][0]).name == RULES.name
    assert configuration["scrape_configs"][0]["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]


# ── what the alerts do, with the program of Prometheus ────────────────────────────────────────────────────


class TestPromtool:
    def test_prometheus_accepts_the_rules(self) -> None:
        """promtool finds no error in the file."""
        done = promtool("check", "rules", str(RULES))
        assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout, done

    @pytest.mark.parametrize(
        ("series", "at", "alerts"),
        [
            # A series that appears with the first buried event, and a later rise of an old series.
            ({'deliveries_total{route="r",status="buried"}': "_x20 1x20"}, "21m", {"OncegateEventNotRun"}),
            ({'deliveries_total{route="r",status="buried"}': "_x20 1x40"}, "50m", set()),
            ({'deliveries_total{route="r",status="conflict"}': "3x30 4x20"}, "33m", {"OncegateEventNotRun"}),
            (
                {
                    'deliveries_total{route="r",status="failed"}': "0+1x40",
                    'deliveries_total{route="r",status="processed"}': "0+50x40",
                },
                "30m",
                {"OncegateEventsFail"},
            ),
            ({"in_hand": "0x250"}, "190m", {"OncegateNothingProcessed"}),
            (
                {"in_hand": "0x250", 'deliveries_total{status="processed"}': "5x250"},
                "200m",
                {"OncegateNothingProcessed"},
            ),
            ({"in_hand": "0x250", 'deliveries_total{status="processed"}': "_x100 1x150"}, "200m", set()),
            ({"in_hand": "0x250", 'deliveries_total{status="processed"}': "0+1x250"}, "200m", set()),
            ({"in_hand": "0x100"}, "90m", set()),
            (
                {
                    'latency_seconds_bucket{route="r",le="2.5"}': "0+90x30",
                    'latency_seconds_bucket{route="r",le="5"}': "0+100x30",
                    'latency_seconds_bucket{route="r",le="+Inf"}': "0+100x30",
                },
                "20m",
                {"OncegateSlowAnswers"},
            ),
            (
                {
                    'latency_seconds_bucket{route="r",le="5"}': "0+90x30",
                    'latency_seconds_bucket{route="r",le="10"}': "0+100x30",
                    'latency_seconds_bucket{route="r",le="+Inf"}': "0+100x30",
                },
                "20m",
                {"OncegateSlowAnswers", "OncegateVerySlowAnswers"},
            ),
            ({'store_errors_total{route="r"}': "0x10 1+1x20"}, "20m", {"OncegateStoreErrors"}),
            ({'store_errors_total{route="r"}': "0x10 1x20"}, "20m", set()),
            ({'inbox_waiting{route="r"}': "0+3x30"}, "20m", {"OncegateInboxGrows"}),
            ({'inbox_waiting{route="r"}': "5 9 3 8 5 9 3 8 5 9 3 8 5 9 3 8 5 9 3 8 5 9"}, "20m", set()),
            ({'dead_letters{route="r"}': "0x1 3x300"}, "1460m", {"OncegateDeadLetters"}),
            ({'dead_letters{route="r"}': "0x1 3x120 0x180"}, "1460m", set()),
            ({'handlers_hung{route="r"}': "0x5 1x5"}, "8m", {"OncegateHandlersHung"}),
            ({'signature_refusals_total{route="r"}': "0x5 1x5"}, "8m", {"OncegateSignatureRefusals"}),
            ({'limited_total{route="r"}': "0x5 1x5"}, "8m", {"OncegateSenderLimited"}),
            ({"shed_total": "0x5 1x5"}, "8m", {"OncegateRequestsShed"}),
            ({"shed_total": "7x30", 'handlers_hung{route="r"}': "0x30"}, "25m", set()),
        ],
    )
    def test_an_alert_fires(self, series: dict[str, str], at: str, alerts: set[str], tmp_path: Path) -> None:
        """Prometheus fires exactly these alerts for these series, with a sample each minute, or every five minutes for
        an alert that waits a day."""
        interval = "5m" if at == "1460m" else "1m"
        inputs = [{"series": in_job(name), "values": values} for name, values in series.items()]
        count = {alert: f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})' for alert in ALERTS}
        expected = [
            {"expr": expr, "eval_time": at, "exp_samples": [{"value": 1}] if alert in alerts else []}
            for alert, expr in count.items()
        ]
        test = {"interval": interval, "input_series": inputs, "promql_expr_test": expected}
        document = {"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": [test]}
        (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
        done = promtool("test", "rules", str(tmp_path / "test.yml"))
        assert done.returncode == 0, done.stdout + done.stderr


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool") or packaged("prometheus", "usr/bin/promtool")
    if program is None:
        missing("promtool", "apt-get install prometheus")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


def in_job(name: str) -> str:
    metric, _, labels = f"oncegate_{name}".partition("{")
    return f'{metric}{{job="oncegate"{"," + labels if labels else "}"}'
