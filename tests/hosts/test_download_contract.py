"""Properties that all three downloaders share: the pods' script, the script on a host over SSH, the agent.

Each of them is run against the same servers. Features of only one of them (parallel ranges, sets of files, S3, caches
that pods share, allowed addresses) are tested in separate modules.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.fetch import Fetcher, FileState
from agent.client.ssh.layout import Layout
from agent.contract import FilePlan
from agent.server.models.download import DownloadSettings, download
from agent.sources.errors import FileError
from agent.sources.source_policy import SourcePolicy
from tests.support.controlplane import eventually
from tests.support.downloader import ONE_SHELL, Downloader, last_line
from tests.support.model_server import File, FileServer
from tests.support.sshd import sshd

CONTENT = b"GGUF" + random.Random(11).randbytes(400_000)
OTHER = b"GGUF" + random.Random(12).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ATTEMPTS = 10
"""How often a download is retried after a temporary failure, as kubelet, loop and agent do."""


@dataclass(frozen=True)
class Failed:
    """The failure of a download."""

    reason: str
    message: str


class Download(Protocol):
    """One of the downloaders."""

    path: Path
    """The target of the file."""

    def once(self, url: str, *, sha256: str | None = None) -> Failed | None:
        """Run one download to its end; return its failure, or None."""


class PodDownload:
    """The script of the init container."""

    def __init__(self, directory: Path) -> None:
        self._script = Downloader.with_shell(ONE_SHELL, directory)
        self.path = self._script.model

    def once(self, url: str, *, sha256: str | None = None) -> Failed | None:
        ended = self._script.run(url, sha256=sha256 or "")
        if ended.returncode == 0:
            return None
        reason, _, message = last_line(ended).partition(": ")
        return Failed(reason.removeprefix("Model"), message)


class SshDownload:
    """The script that the loop starts on a host."""

    def __init__(self, connection: SshConnection, store: Path) -> None:
        self._fetcher = Fetcher(connection, Layout(str(store)), None)
        self.path = store / "models/k/m.gguf"

    def once(self, url: str, *, sha256: str | None = None) -> Failed | None:
        plan = FilePlan(source=url, cache_key="k", file_name="m.gguf", sha256=sha256)
        self._fetcher.start(plan)

        def ended() -> FileState | None:
            state = self._fetcher.state(plan)
            # Until the script holds its lock, the fetch counts as neither running nor failed.
            return state if state.there or (state.failure and not state.running) else None

        state = eventually(ended, what="the end of a fetch", timeout_s=60)
        if state.there:
            return None
        assert state.failure is not None
        return Failed(state.failure[0].value, state.failure[1])


class AgentDownload:
    """The agent's module."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.path = store / "k/m.gguf"

    def once(self, url: str, *, sha256: str | None = None) -> Failed | None:
        plan = FilePlan(source=url, cache_key="k", file_name="m.gguf", sha256=sha256)
        settings = DownloadSettings(stall_timeout_s=3.0, attempts=3, backoff_base_s=0.01, backoff_cap_s=0.05)
        try:
            path = download(
                plan,
                self._store,
                policy=SourcePolicy(allowed_remote_hosts=("127.0.0.1",)),
                on_progress=lambda _done, _total: None,
                cancel=threading.Event(),
                settings=settings,
            )
        except FileError as error:
            return Failed(error.reason.value, error.message)
        assert path == self.path
        return None


@pytest.fixture
def files() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


@pytest.fixture(params=["pod", "ssh", "agent"])
def downloads(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Download]:
    if request.param == "pod":
        yield PodDownload(tmp_path)
    elif request.param == "agent":
        yield AgentDownload(tmp_path / "store")
    else:
        with sshd(tmp_path / "host") as server:
            connection = SshConnection(server.target())
            yield SshDownload(connection, server.store)
            connection.close()


def until_there(downloads: Download, url: str, *, sha256: str | None = None) -> None:
    """Repeat a download after each failure, as its owner does."""
    for _ in range(ATTEMPTS):
        failed = downloads.once(url, sha256=sha256)
        if failed is None:
            return
    pytest.fail(f"no file after {ATTEMPTS} attempts; the last one: {failed}")


def neighbours(downloads: Download) -> list[str]:
    """The files beside the model that others would take for models."""
    return sorted(p.name for p in downloads.path.parent.glob("*") if not p.name.startswith(".") and p != downloads.path)


@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_file_arrives_whole(downloads: Download, files: FileServer, sha256: str | None) -> None:
    assert downloads.once(files.serve("/m.gguf", File(CONTENT)), sha256=sha256) is None
    assert downloads.path.read_bytes() == CONTENT
    assert neighbours(downloads) == []


def test_a_file_that_is_in_place_is_not_fetched_again(downloads: Download, files: FileServer) -> None:
    url = files.serve("/m.gguf", File(CONTENT))
    assert downloads.once(url, sha256=SHA256) is None
    sent = files.sent("/m.gguf")
    assert downloads.once(url, sha256=SHA256) is None
    assert files.sent("/m.gguf") == sent


def test_a_redirected_file_arrives(downloads: Download, files: FileServer) -> None:
    target = files.serve("/there/m.gguf", File(CONTENT))
    assert downloads.once(files.serve("/m.gguf", File(redirect=target))) is None
    assert downloads.path.read_bytes() == CONTENT


def test_a_cut_connection_is_resumed_where_it_broke(downloads: Download, files: FileServer) -> None:
    url = files.serve("/m.gguf", File(CONTENT, cut_after=100_000, cuts=2))
    until_there(downloads, url, sha256=SHA256)
    assert downloads.path.read_bytes() == CONTENT
    assert files.sent("/m.gguf") < 2 * len(CONTENT), "what had arrived was kept"


def test_a_file_that_changed_since_the_cut_is_never_mixed(downloads: Download, files: FileServer) -> None:
    url = files.serve("/m.gguf", File(OTHER, cut_after=100_000, cuts=99, bytes_per_s=200_000))

    def change() -> None:
        eventually(lambda: files.sent("/m.gguf") > 50_000, what="the first half", timeout_s=60)
        files.serve("/m.gguf", File(CONTENT, etag='"v2"'))

    changing = threading.Thread(target=change)
    changing.start()
    until_there(downloads, url)
    changing.join()
    assert downloads.path.read_bytes() == CONTENT


def test_a_server_without_ranges_and_lengths_is_enough(downloads: Download, files: FileServer) -> None:
    until_there(downloads, files.serve("/m.gguf", File(CONTENT, ranges=False, says_length=False)), sha256=SHA256)
    assert downloads.path.read_bytes() == CONTENT


def test_a_passing_failure_of_the_server_is_overcome(downloads: Download, files: FileServer) -> None:
    until_there(downloads, files.serve("/m.gguf", File(CONTENT, statuses=[503, 429])), sha256=SHA256)
    assert downloads.path.read_bytes() == CONTENT


def test_a_wrong_sum_is_named_with_both_and_never_in_place(downloads: Download, files: FileServer) -> None:
    failed = downloads.once(files.serve("/m.gguf", File(OTHER)), sha256=SHA256)
    assert failed is not None and failed.reason == "ChecksumMismatch"
    assert SHA256 in failed.message and hashlib.sha256(OTHER).hexdigest() in failed.message
    assert not downloads.path.exists()
    assert neighbours(downloads) == []


def test_a_file_in_place_stays_until_the_right_one_is_whole(downloads: Download, files: FileServer) -> None:
    url = files.serve("/m.gguf", File(OTHER))
    assert downloads.once(url) is None
    failed = downloads.once(url, sha256=SHA256)
    assert failed is not None and failed.reason == "ChecksumMismatch"
    assert downloads.path.read_bytes() == OTHER, "an engine may have it open"
    files.serve("/m.gguf", File(CONTENT, etag='"v2"'))
    until_there(downloads, url, sha256=SHA256)
    assert downloads.path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "SourceUnauthorized"), (403, "SourceUnauthorized"), (404, "SourceNotFound"), (410, "SourceNotFound")],
)
def test_a_refusal_is_named(downloads: Download, files: FileServer, status: int, reason: str) -> None:
    failed = downloads.once(files.serve("/m.gguf", File(CONTENT, statuses=[status] * 20)))
    assert failed is not None and failed.reason == reason
    assert str(status) in failed.message
    assert not downloads.path.exists()


def test_a_server_that_is_not_there_is_named(downloads: Download) -> None:
    with FileServer() as gone:
        url = gone.url("/m.gguf")
    failed = downloads.once(url)
    assert failed is not None and failed.reason == "SourceUnreachable"


def test_secrets_in_an_address_stay_out_of_messages(downloads: Download, files: FileServer) -> None:
    url = files.serve("/m.gguf", File(CONTENT, statuses=[404] * 20)) + "?sig=s3cret&exp=1"
    failed = downloads.once(url)
    assert failed is not None and "s3cret" not in failed.message
