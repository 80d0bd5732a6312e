"""The probe with a real server and real files: the facts of an inspection, and when the next one is due."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from agent.server.models.source_access import Credentials, S3Signer
from automation.models.model_probe import ModelProbe, ProbeSettings, SourcePolicy
from automation.models.source_credentials import SecretUnreadable
from program.desired.facts import ProbeFacts
from program.desired.model import ModelSource, SourceKind
from program.desired.web_address import WebAddress
from program.dialects.llmkube.parse.source import parse_source
from tests.support.model_server import File, FileServer

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).resolve().parents[2] / "conformance" / "llmkube" / "fixtures"
PLAIN = (FIXTURES / "plain-7b.Q4_K_M.gguf").read_bytes()
SHA256 = hashlib.sha256(PLAIN).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@contextmanager
def probing(root: Path, clock: Clock, *, timeout_s: float) -> Iterator[ModelProbe]:
    policy = SourcePolicy(allowed_remote_hosts=("127.0.0.1",), allowed_host_path_roots=(str(root),))
    settings = ProbeSettings(timeout_s=timeout_s, small_file_bytes=1 << 20, hashed_unasked_bytes=1000)
    made = ModelProbe(policy, settings=settings, clock=clock, dice=lambda: 0.0)
    yield made
    made.close()


@pytest.fixture
def probe(tmp_path: Path, clock: Clock) -> Iterator[ModelProbe]:
    with probing(tmp_path, clock, timeout_s=2.0) as made:
        yield made


@pytest.fixture
def patient_probe(tmp_path: Path, clock: Clock) -> Iterator[ModelProbe]:
    """A probe that waits a minute for a source that does not answer."""
    with probing(tmp_path, clock, timeout_s=60.0) as made:
        yield made


def look(
    probe: ModelProbe,
    address: str,
    *,
    sha256: str | None = None,
    model_format: str = "gguf",
    files: tuple[str, ...] = (),
    secret: str = "",
) -> ProbeFacts:
    """Request a new inspection and wait for its end; return its facts."""
    source = parse_source(address, format=model_format, files=bool(files))
    found: list[ProbeFacts | None] = []

    def ask() -> bool:
        found.append(
            probe.latest(
                source,
                sha256=sha256,
                model_format=model_format,
                who="ns/m",
                changed=lambda: None,
                files=files,
                secret=secret,
            )
        )
        return found[-1] is not None

    until(ask)
    facts = found[-1]
    assert facts is not None
    return facts


class Asking:
    """Calls the probe as a worker of the loop does, without waiting; counts the reports of new facts."""

    def __init__(self, probe: ModelProbe, address: str, *, sha256: str | None = None) -> None:
        self.source = parse_source(address)
        self.sha256 = sha256
        self.probe = probe
        self.news = 0

    def __call__(self) -> ProbeFacts | None:
        return self.probe.latest(
            self.source, sha256=self.sha256, model_format="gguf", who="ns/m", changed=self._changed
        )

    def _changed(self) -> None:
        self.news += 1

    def settled(self) -> ProbeFacts:
        """Call the probe, wait until no inspection is under way, and return the facts."""
        self()
        until(self.probe.idle)
        facts = self()
        assert facts is not None
        return facts

    def due_in_s(self) -> float:
        return self.probe.due_in_s(self.source, sha256=self.sha256, model_format="gguf")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- one inspection ---------------------------------------------------------------------------------------------------


def test_a_remote_header_is_read_without_the_file(server: FileServer, probe: ModelProbe) -> None:
    found = look(probe, server.serve("/x.gguf", File(PLAIN + bytes(50 << 20))))
    assert found.outcome == "read"
    assert found.gguf is not None
    assert (found.gguf.name, found.size_bytes, found.etag) == ("Plain 7B Chat", 544 + (50 << 20), '"v1"')
    assert found.sha256 == ""
    assert server.sent("/x.gguf") < 2 << 20


def test_a_small_remote_file_is_checked_whole(server: FileServer, probe: ModelProbe) -> None:
    url = server.serve("/x.gguf", File(PLAIN))
    good = look(probe, url, sha256=SHA256.upper())
    assert (good.outcome, good.sha256) == ("read", SHA256)
    bad = look(probe, url, sha256="0" * 64)
    assert (bad.outcome, bad.reason) == ("mismatch", "ChecksumMismatch")
    assert SHA256 in bad.message
    assert "0" * 64 in bad.message


def test_a_large_remote_file_is_left_to_those_who_fetch_it(server: FileServer, probe: ModelProbe) -> None:
    found = look(probe, server.serve("/x.gguf", File(PLAIN + bytes(2 << 20))), sha256="0" * 64)
    assert (found.outcome, found.sha256) == ("read", "")


@pytest.mark.parametrize(
    ("file", "outcome", "reason"),
    [
        (None, "unreachable", "SourceNotFound"),
        (File(PLAIN, statuses=[401]), "unreachable", "SourceUnauthorized"),
        (File(PLAIN, statuses=[503]), "unreachable", "SourceUnreachable"),
        (File(b"this is not a model file"), "not-gguf", "NotGguf"),
        (File(PLAIN[:100]), "not-gguf", "NotGguf"),
        (File(b"GGUF\x09\x00\x00\x00" + bytes(100)), "unreachable", "NotGguf"),
        (File(redirect="http://169.254.169.254/latest/meta-data"), "refused", "SourceRefused"),
    ],
)
def test_each_failure_has_its_outcome_and_reason(
    server: FileServer, probe: ModelProbe, file: File | None, outcome: str, reason: str
) -> None:
    url = server.url("/x.gguf")
    if file is not None:
        server.serve("/x.gguf", file)
    found = look(probe, url)
    assert (found.outcome, found.reason) == (outcome, reason)
    assert found.message
    assert found.source == url


def test_other_formats_have_no_gguf_header(server: FileServer, probe: ModelProbe) -> None:
    found = look(probe, server.serve("/w.bin", File(b"weights")), model_format="custom")
    assert (found.outcome, found.gguf, found.size_bytes) == ("read", None, 7)


def test_a_local_file_is_read_and_hashed(probe: ModelProbe, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(PLAIN)
    for address in (str(path), f"file://{path}"):
        found = look(probe, address)
        assert (found.outcome, found.sha256, found.size_bytes) == ("read", SHA256, 544)
    assert look(probe, str(path), sha256="0" * 64).outcome == "mismatch"
    path.write_bytes(PLAIN + b"more")
    assert look(probe, str(path), sha256=SHA256).outcome == "mismatch"


def test_a_large_local_file_is_hashed_only_if_asked(probe: ModelProbe, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(PLAIN + bytes(1000))
    assert look(probe, str(path)).sha256 == ""
    assert look(probe, str(path), sha256=hashlib.sha256(PLAIN + bytes(1000)).hexdigest()).sha256 != ""


def test_local_paths_that_are_missing_or_not_allowed(probe: ModelProbe, tmp_path: Path) -> None:
    missing = look(probe, str(tmp_path / "nothing.gguf"))
    assert (missing.outcome, missing.reason) == ("unreachable", "SourceNotFound")
    assert "it may exist on a node" in missing.message
    assert look(probe, "/etc/hostname").outcome == "refused"
    assert look(probe, str(tmp_path), model_format="mlx").outcome == "read"
    assert look(probe, str(tmp_path)).outcome == "not-gguf"


# --- in the background ------------------------------------------------------------------------------------------------


def test_the_first_answer_is_none_and_the_news_comes_by_itself(server: FileServer, probe: ModelProbe) -> None:
    stall = threading.Event()
    asking = Asking(probe, server.serve("/x.gguf", File(PLAIN, stall=stall)))
    # Neither call waits for the server, which sends nothing until `stall` is set.
    assert asking() is None
    assert asking() is None
    assert not probe.idle()
    assert asking.due_in_s() > 0
    stall.set()
    until(lambda: asking.news == 1)
    assert (asking() or ProbeFacts(outcome="unreachable")).outcome == "read"


def test_slow_sources_of_one_namespace_do_not_keep_others_waiting(
    server: FileServer, patient_probe: ModelProbe
) -> None:
    stall = threading.Event()
    for number in range(18):
        url = server.serve(f"/slow-{number}.gguf", File(PLAIN, stall=stall))
        source, who = parse_source(url), f"tenant/{number}"
        patient_probe.latest(source, sha256=None, model_format="gguf", who=who, changed=lambda: None)
    quick = parse_source(server.serve("/x.gguf", File(PLAIN)))
    done = threading.Event()
    patient_probe.latest(quick, sha256=None, model_format="gguf", who="other/m", changed=done.set)
    assert done.wait(30)
    stall.set()
    until(patient_probe.idle)


def test_a_source_of_two_namespaces_is_read_at_the_turn_of_the_first_of_them(
    server: FileServer, patient_probe: ModelProbe
) -> None:
    stall = threading.Event()
    for number in range(8):
        url = server.serve(f"/slow-{number}.gguf", File(PLAIN, stall=stall))
        source, who = parse_source(url), f"tenant/{number}"
        patient_probe.latest(source, sha256=None, model_format="gguf", who=who, changed=lambda: None)
    shared = parse_source(server.serve("/x.gguf", File(PLAIN)))
    done = threading.Event()
    for who in ("tenant/shared", "other/shared"):
        patient_probe.latest(shared, sha256=None, model_format="gguf", who=who, changed=done.set)
    assert done.wait(30)
    stall.set()
    until(patient_probe.idle)
    assert len([request for request in server.requests if request.path == "/x.gguf"]) == 1


def test_a_set_of_many_files_does_not_outlast_its_time(probe: ModelProbe) -> None:
    names = tuple(f"{number}.safetensors" for number in range(64))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        hub = f"http://127.0.0.1:{silent.getsockname()[1]}"
        mirrored = ModelProbe(probe.policy, hub_url=hub, settings=ProbeSettings(timeout_s=0.5))
        began = time.monotonic()
        source = parse_source("hf://acme/tiny")
        ended = threading.Event()
        mirrored.latest(source, sha256=None, model_format="safetensors", files=names, who="ns/m", changed=ended.set)
        # The limit is half a second, and a twentieth of a second for each file.
        assert ended.wait(6), "the look goes on"
        assert time.monotonic() - began < 6
        mirrored.close()


def test_many_models_of_one_source_look_once(server: FileServer, probe: ModelProbe) -> None:
    url = server.serve("/x.gguf", File(PLAIN))
    news: list[int] = []
    for number in range(50):
        probe.latest(
            parse_source(url),
            sha256=None,
            model_format="gguf",
            who=f"ns/{number}",
            changed=lambda number=number: news.append(number),
        )
    until(probe.idle)
    until(lambda: len(news) == 50)
    assert len(server.requests) == 1


def test_a_failed_look_is_repeated_with_growing_pauses(server: FileServer, probe: ModelProbe, clock: Clock) -> None:
    file = File(PLAIN, statuses=[503] * 3)
    asking = Asking(probe, server.serve("/x.gguf", file))
    pauses = []
    for _ in range(3):
        assert asking.settled().outcome == "unreachable"
        pauses.append(asking.due_in_s())
        before = len(server.requests)
        asking()
        until(probe.idle)
        assert len(server.requests) == before
        clock.now += pauses[-1]
    assert pauses == [10.0, 20.0, 40.0]
    assert asking.settled().outcome == "read"
    assert asking.due_in_s() == 3600.0


def test_a_good_look_is_confirmed_hourly_by_one_small_request(
    server: FileServer, probe: ModelProbe, clock: Clock
) -> None:
    file = File(PLAIN)
    asking = Asking(probe, server.serve("/x.gguf", file), sha256=SHA256)
    first = asking.settled()
    assert asking.news == 1
    before = len(server.requests)
    clock.now += 3600
    assert asking.settled() == first
    assert [request.range for request in server.requests[before:]] == ["bytes=0-0"]
    assert asking.news == 1
    file.content, file.etag = PLAIN + b"x", '"v2"'
    clock.now += 3600
    assert asking.settled().outcome == "mismatch"
    assert asking.news == 2


def test_a_network_that_is_down_does_not_unmake_what_was_seen(
    server: FileServer, probe: ModelProbe, clock: Clock
) -> None:
    file = File(PLAIN)
    asking = Asking(probe, server.serve("/x.gguf", file))
    first = asking.settled()
    file.statuses = [503]
    clock.now += 3600
    assert asking.settled() == first
    assert asking.due_in_s() == 10.0


def test_an_edited_checksum_is_a_question_of_its_own(server: FileServer, probe: ModelProbe) -> None:
    url = server.serve("/x.gguf", File(PLAIN))
    assert Asking(probe, url, sha256="0" * 64).settled().outcome == "mismatch"
    assert Asking(probe, url, sha256=SHA256).settled().outcome == "read"


def test_sources_that_nobody_asks_for_are_forgotten(server: FileServer, probe: ModelProbe, clock: Clock) -> None:
    asking = Asking(probe, server.serve("/x.gguf", File(PLAIN)))
    asking.settled()
    clock.now += 5 * 3600
    Asking(probe, server.serve("/y.gguf", File(PLAIN))).settled()
    assert asking() is None


def test_a_closed_probe_looks_no_more(server: FileServer, probe: ModelProbe) -> None:
    probe.close()
    asking = Asking(probe, server.serve("/x.gguf", File(PLAIN)))
    assert asking() is None
    assert probe.idle()
    assert server.requests == []


# --- hubs, sets of files, stores, secrets -----------------------------------------------------------------------------

SPLIT = tuple(f"q4/tiny-{n:05d}-of-00003.gguf" for n in (1, 2, 3))


class Secrets:
    """Returns the same credentials, or raises the same refusal, for every Secret."""

    def __init__(self, answer: Credentials | SecretUnreadable) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    def read(self, namespace: str, name: str) -> Credentials:
        self.asked.append((namespace, name))
        if isinstance(self.answer, SecretUnreadable):
            raise self.answer
        return self.answer


@contextmanager
def credible(server: FileServer, secrets: Secrets) -> Iterator[ModelProbe]:
    """A probe that may read Secrets, and whose Hub is the server."""
    policy = SourcePolicy(allowed_remote_hosts=("127.0.0.1",))
    probe = ModelProbe(policy, hub_url=server.url(""), read_secret=secrets.read, dice=lambda: 0.0)
    yield probe
    probe.close()


def test_one_file_of_a_repository_is_looked_at_through_the_hub(server: FileServer) -> None:
    server.serve("/acme/tiny/resolve/v2/tiny.gguf", File(PLAIN))
    with credible(server, Secrets(Credentials(hub_token="hf_x"))) as probe:
        found = look(probe, "hf://acme/tiny@v2/tiny.gguf", secret="ns/hub")
        assert (found.outcome, found.size_bytes) == ("read", len(PLAIN))
        assert {request.headers["Authorization"] for request in server.requests} == {"Bearer hf_x"}


def test_a_set_is_as_large_as_all_its_files_and_changes_with_each(server: FileServer) -> None:
    for index, name in enumerate(SPLIT):
        server.serve(f"/acme/tiny/resolve/main/{name}", File(PLAIN + bytes(1000 * index), etag=f'"{index}"'))
    with credible(server, Secrets(Credentials())) as probe:
        found = look(probe, "hf://acme/tiny", files=SPLIT)
        assert found.outcome == "read"
        assert found.gguf is not None
        assert (found.gguf.name, found.size_bytes) == ("Plain 7B Chat", 3 * len(PLAIN) + 3000)
        again = look(probe, "hf://acme/tiny", files=SPLIT, sha256="0" * 64)
        assert again.etag == found.etag
        server.files[f"/acme/tiny/resolve/main/{SPLIT[2]}"].etag = '"new"'
        assert look(probe, "hf://acme/tiny", files=SPLIT, sha256="1" * 64).etag != found.etag
        del server.files[f"/acme/tiny/resolve/main/{SPLIT[1]}"]
        gone = look(probe, "hf://acme/tiny", files=SPLIT, sha256="2" * 64)
        assert (gone.outcome, gone.reason) == ("unreachable", "SourceNotFound")
        assert SPLIT[1] in gone.message


def test_an_object_is_asked_for_with_a_signature_that_the_store_can_check(server: FileServer) -> None:
    server.serve("/weights/chat/a%20b.gguf", File(PLAIN))
    credentials = Credentials(
        access_key_id="id", secret_access_key="key", region="eu-west-1", endpoint=f"{server.url('')}/"
    )
    with credible(server, Secrets(credentials)) as probe:
        source = ModelSource(
            kind=SourceKind.S3, address="s3://weights/chat/a b.gguf", bucket="weights", path="chat/a b.gguf"
        )
        probe.latest(source, sha256=None, model_format="gguf", who="x", changed=lambda: None, secret="ns/s3")
        until(probe.idle)
        found = probe.latest(source, sha256=None, model_format="gguf", who="x", changed=lambda: None, secret="ns/s3")
        assert found is not None
        assert found.outcome == "read"
        sent = server.requests[0].headers
        moment = datetime.strptime(sent["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
        signer = S3Signer("id", "key", "", "eu-west-1", clock=lambda: moment)
        assert (
            sent["Authorization"]
            == signer.headers(WebAddress.parse(f"http://{sent['Host']}{server.requests[0].path}"))["Authorization"]
        )


def test_without_its_secret_a_source_is_not_asked_at_all(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN))
    refused = SecretUnreadable("SourceSecretNotReadable", "the loop may not read Secret `s`")
    with credible(server, Secrets(refused)) as probe:
        found = look(probe, url, secret="ns/s")
        assert (found.outcome, found.reason) == ("unreachable", "SourceSecretNotReadable")
        assert "may not read" in found.message
        assert server.requests == []


def test_what_one_namespace_s_secret_opened_is_not_another_s(server: FileServer) -> None:
    url = server.serve("/x.gguf", File(PLAIN))
    secrets = Secrets(Credentials(hub_token="t"))
    with credible(server, secrets) as probe:
        look(probe, url, secret="a/s")
        look(probe, url, secret="b/s")
        look(probe, url)
        assert secrets.asked == [("a", "s"), ("b", "s")]
        assert [request.headers.get("Authorization") for request in server.requests] == ["Bearer t", "Bearer t", None]


@pytest.mark.parametrize("files", [(), ("a.gguf", "b.gguf")])
def test_a_redirect_to_a_private_address_is_not_followed(server: FileServer, files: tuple[str, ...]) -> None:
    for name in ("x.gguf", "a.gguf", "b.gguf"):
        server.serve(f"/acme/tiny/resolve/main/{name}", File(redirect="http://10.0.0.1/latest/meta-data"))
    with credible(server, Secrets(Credentials())) as probe:
        found = look(probe, "hf://acme/tiny" if files else "hf://acme/tiny/x.gguf", files=files)
        assert (found.outcome, found.reason) == ("refused", "SourceRefused")
        assert "10.0.0.1" in found.message


@pytest.mark.parametrize(
    ("file", "outcome"),
    [
        (File(PLAIN, claims_length=len(PLAIN) + 10), "unreachable"),
        (File(PLAIN[:300], claims_length=len(PLAIN), ranges=False), "unreachable"),
        (File(PLAIN[:200]), "not-gguf"),
        (File(PLAIN, cut_after=100, cuts=9, ranges=False), "unreachable"),
        (File(b"<html>quota exceeded</html>"), "not-gguf"),
        (File(b"GGUF" + bytes(4), new_etag_each_time=True), "not-gguf"),
    ],
    ids=["longer than it is", "shorter than it says", "cut off", "hangs up", "a page", "version 0"],
)
def test_a_server_that_lies_is_never_believed(server: FileServer, probe: ModelProbe, file: File, outcome: str) -> None:
    found = look(probe, server.serve("/x.gguf", file))
    assert found.outcome == outcome
    assert found.gguf is None
    assert found.message
