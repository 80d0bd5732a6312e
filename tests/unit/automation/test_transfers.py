"""Downloads under way: the progress in a downloader's log, which an HTTP server serves as the API server does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from automation.cache import trim
from automation.models.transfers import MOST_READS, READ_AGAIN_FOR, Progress, TransferWatch, progress_of
from components import naming
from kubeapi.client import KubeClient
from kubeapi.config import Access, Endpoint
from kubeapi.json_types import Json
from program.desired.facts import TransferFacts

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Logs:
    """The log of each pod's downloader, and the logs that were read."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.failures: list[int] = []
        """The statuses of the next answers, before those with a log."""
        self.read: list[str] = []
        self.queries: list[dict[str, list[str]]] = []
        self.url = ""


@pytest.fixture
def logs() -> Iterator[Logs]:
    served = Logs()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            pod = parts.path.split("/")[6]
            served.read.append(pod)
            served.queries.append(parse_qs(parts.query))
            text = served.texts.get(pod)
            status = served.failures.pop(0) if served.failures else 200 if text is not None else 404
            self.send_response(status)
            self.end_headers()
            self.wfile.write((text or "").encode() if status == 200 else b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


class Watching:
    """A TransferWatch whose rounds and clock the test controls."""

    def __init__(self, logs: Logs) -> None:
        self.now = 0.0
        self.date = NOW
        self.news: list[str] = []
        self.client = KubeClient(Access(lambda: Endpoint(logs.url)))
        self.watch = TransferWatch(
            self.client,
            changed=lambda namespace, model: self.news.append(model),
            clock=lambda: self.now,
            now=lambda: self.date,
            every_s=3600.0,
        )
        # A closed watch starts no thread, which would read logs at the same time as the test.
        self.watch.close()

    def pod(self, name: str, *, model: str = "m", running: bool = True, old: Json | None = None) -> Json:
        state = {"running": {}} if running else {"terminated": {"exitCode": 0, "reason": "Completed"}}
        made = trim.pod(
            {
                "metadata": {"name": name, "namespace": "ns", "labels": {naming.LABEL_MODEL: model}},
                "spec": {},
                "status": {"initContainerStatuses": [{"name": "model-downloader", "state": state}]},
            }
        )
        self.watch.pod_changed(old, made)
        return made

    def latest(self, model: str = "m") -> TransferFacts | None:
        return self.watch.latest("ns", model)


@pytest.fixture
def watching(logs: Logs) -> Iterator[Watching]:
    made = Watching(logs)
    yield made
    made.client.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("progress 5 10 a.gguf\nprogress 7 10 a.gguf\n", Progress(7, 10)),
        ("Trying again: x\nprogress 7 0 -\nTrying again: y\n", Progress(7, None)),
        ("Waiting: another pod is fetching x\n", None),
        ("progress many 10 a\nprogress 99999999999999999999 1 a\n", None),
        ("", None),
    ],
)
def test_the_last_line_of_progress_counts(text: str, expected: Progress | None) -> None:
    assert progress_of(text) == expected


def test_a_download_is_told_with_its_rate(logs: Logs, watching: Watching) -> None:
    assert watching.latest() is None
    watching.pod("m-0")
    for now, done in ((0.0, 100), (5.0, 600), (10.0, 1100)):
        watching.now = now
        logs.texts["m-0"] = f"progress {done} 10000 x.gguf\n"
        watching.watch.round()
    assert watching.latest() == TransferFacts(done_bytes=1100, total_bytes=10000, bytes_per_s=100.0, where="pod/m-0")
    assert watching.news == ["m", "m", "m"]
    watching.watch.round()
    assert watching.news == ["m", "m", "m"]
    assert logs.queries[0] == {"container": ["model-downloader"], "tailLines": ["5"], "limitBytes": ["2048"]}


def test_the_end_of_the_last_downloader_is_the_end_of_the_download(logs: Logs, watching: Watching) -> None:
    logs.texts["m-0"] = "progress 5 10 x\n"
    running = watching.pod("m-0")
    watching.watch.round()
    logs.texts["m-0"] = "progress 10 10 -\nFetched https://example.com/x.gguf: 10 bytes\n"
    watching.pod("m-0", running=False, old=running)
    watching.watch.round()
    assert watching.latest() is None
    assert watching.watch.fetched_at("ns", "m") == NOW
    assert watching.news[-1] == "m"
    read = len(logs.read)
    watching.watch.round()
    assert len(logs.read) == read


@pytest.mark.parametrize("status", [503, 403])
def test_the_end_of_a_log_is_read_again_after_a_failure(logs: Logs, watching: Watching, status: int) -> None:
    logs.texts["m-0"] = "Fetched https://example.com/x.gguf: 10 bytes\n"
    running = watching.pod("m-0")
    watching.pod("m-0", running=False, old=running)
    logs.failures = [status]
    watching.watch.round()
    assert watching.watch.fetched_at("ns", "m") is None
    assert watching.latest() is None
    watching.date += timedelta(seconds=5)
    watching.news.clear()
    watching.watch.round()
    assert watching.watch.fetched_at("ns", "m") == NOW, "the source may have changed again since"
    assert watching.news == ["m"]
    read = len(logs.read)
    watching.watch.round()
    assert len(logs.read) == read


def test_a_late_read_does_not_set_the_time_of_a_download_back(logs: Logs, watching: Watching) -> None:
    logs.texts = dict.fromkeys(("m-0", "m-1"), "Fetched https://example.com/x.gguf: 10 bytes\n")
    for pod in ("m-0", "m-1"):
        watching.pod(pod, running=False, old=watching.pod(pod))
        logs.failures = [503] if pod == "m-0" else []
        watching.watch.round()
        watching.date += timedelta(seconds=5)
    watching.watch.round()
    assert watching.watch.fetched_at("ns", "m") == NOW + timedelta(seconds=5)


def test_the_end_of_a_log_that_can_never_be_read_is_given_up(logs: Logs, watching: Watching) -> None:
    logs.failures = [503] * 3
    watching.pod("m-0", running=False, old=watching.pod("m-0"))
    watching.watch.round()
    watching.date += READ_AGAIN_FOR
    watching.watch.round()
    watching.watch.round()
    assert logs.read == ["m-0", "m-0"]


def test_a_pod_that_found_the_file_in_place_fetched_nothing(logs: Logs, watching: Watching) -> None:
    logs.texts["m-0"] = ""
    running = watching.pod("m-0")
    watching.pod("m-0", running=False, old=running)
    watching.watch.round()
    assert watching.watch.fetched_at("ns", "m") is None


def test_of_many_pods_the_one_that_downloads_is_found_and_then_asked_first(logs: Logs, watching: Watching) -> None:
    for number in range(6):
        logs.texts[f"m-{number}"] = "Waiting: another pod is fetching x\n"
        watching.pod(f"m-{number}")
    logs.texts["m-4"] = "progress 5 10 x\n"
    for _ in range(6):
        watching.watch.round()
    found = watching.latest()
    assert found is not None
    assert found.where == "pod/m-4"
    logs.read.clear()
    watching.watch.round()
    assert logs.read == ["m-4"]


def test_a_round_reads_so_many_logs_and_no_more(logs: Logs, watching: Watching) -> None:
    for number in range(MOST_READS + 10):
        logs.texts[f"p-{number}"] = "progress 5 10 x\n"
        watching.pod(f"p-{number}", model=f"m{number}")
    turn = watching.watch.round()
    assert len(logs.read) == MOST_READS
    watching.watch.round(turn)
    assert len(set(logs.read)) == MOST_READS + 10


def test_a_log_that_cannot_be_read_changes_nothing(watching: Watching) -> None:
    watching.pod("gone")
    watching.watch.round()
    assert watching.latest() is None
    assert watching.news == []


def test_a_deleted_pod_downloads_no_more(logs: Logs, watching: Watching) -> None:
    logs.texts["m-0"] = "progress 5 10 x\n"
    running = watching.pod("m-0")
    watching.watch.round()
    del logs.texts["m-0"]
    watching.watch.pod_changed(running, None)
    watching.watch.round()
    assert watching.latest() is None


def test_the_thread_reads_while_something_downloads_and_sleeps_else(logs: Logs) -> None:
    told = threading.Event()
    watch = TransferWatch(
        KubeClient(Access(lambda: Endpoint(logs.url))), changed=lambda namespace, model: told.set(), every_s=0.01
    )
    logs.texts["m-0"] = "progress 5 10 x\n"
    watch.downloader_changed("ns", "m", "m-0", where="job/m-prefetch", running=True)
    assert told.wait(20)
    found = watch.latest("ns", "m")
    assert found is not None
    assert found.where == "job/m-prefetch"
    watch.downloader_changed("ns", "m", "m-0", where="", running=False)
    until(lambda: watch.latest("ns", "m") is None)
    until(lambda: not watch._busy.is_set())
    read = len(logs.read)
    assert not threading.Event().wait(0.1)
    assert len(logs.read) == read
    watch.close()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("did not come true")
