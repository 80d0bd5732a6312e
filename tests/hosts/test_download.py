"""Downloads from a real server with faults, with real processes, a real full disk and real kills.

Covered: resume after a cut and after a kill, a changed file, no ranges, parallel ranges, wrong sizes and checksums, one
download for many threads and processes, cancel, stalls, a full disk, a file size limit, files that are used in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract import FilePlan
from agent.server.models.download import DownloadSettings, download
from agent.sources import errors
from agent.sources.source_policy import SourcePolicy
from tests.support.controlplane import eventually
from tests.support.model_server import File, FileServer

LOOPBACK = SourcePolicy(allowed_remote_hosts=("127.0.0.1",))
QUICK = DownloadSettings(
    stall_timeout_s=2.0,
    attempts=4,
    backoff_base_s=0.01,
    backoff_cap_s=0.05,
    parallel_from_bytes=1 << 20,
    chunk_bytes=1 << 14,
    save_interval_s=0.05,
    progress_interval_s=0.02,
)
ONE_STREAM = DownloadSettings(**{**QUICK.__dict__, "streams": 1})
CONTENT = b"GGUF" + random.Random(7).randbytes(3 << 20)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


def plan(source: str, **fields: object) -> FilePlan:
    return FilePlan.model_validate({"source": source, "cache_key": "0123456789abcdef", "file_name": "m.gguf", **fields})


def fetch(
    wanted: FilePlan,
    store: Path,
    *,
    settings: DownloadSettings = QUICK,
    policy: SourcePolicy = LOOPBACK,
    seen: list[tuple[int, int | None]] | None = None,
    cancel: threading.Event | None = None,
) -> Path:
    def on_progress(done: int, total: int | None) -> None:
        if seen is not None:
            seen.append((done, total))

    return download(
        wanted, store, policy=policy, on_progress=on_progress, cancel=cancel or threading.Event(), settings=settings
    )


def in_place(store: Path) -> list[str]:
    """The complete files under their final names, which are all that other processes see."""
    return sorted(p.name for p in store.glob("*/*") if not p.name.startswith("."))


def left_over(store: Path) -> list[str]:
    return sorted(p.name for p in store.glob("*/.*") if p.name.endswith((".partial", ".state.json", ".tmp")))


def slot(store: Path) -> Path:
    return store / "0123456789abcdef"


# --- without faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [QUICK, ONE_STREAM])
@pytest.mark.parametrize("sha256", [None, SHA256, SHA256.upper()])
def test_a_file_arrives_whole_under_its_name(
    server: FileServer, tmp_path: Path, settings: DownloadSettings, sha256: str | None
) -> None:
    seen: list[tuple[int, int | None]] = []
    url = server.serve("/m.gguf", File(CONTENT))
    path = fetch(plan(url, sha256=sha256, size_bytes=len(CONTENT)), tmp_path, settings=settings, seen=seen)
    assert path == tmp_path / "0123456789abcdef" / "m.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert left_over(tmp_path) == []


def test_a_large_file_comes_in_parallel_ranges_that_meet(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT))
    assert fetch(plan(url), tmp_path).read_bytes() == CONTENT
    ranges = sorted(request.range or "" for request in server.requests if request.range != "bytes=0-0")
    assert len(ranges) == 4
    assert server.sent("/m.gguf") == len(CONTENT) + 1


def test_a_second_call_asks_the_server_for_nothing(server: FileServer, tmp_path: Path) -> None:
    wanted = plan(server.serve("/m.gguf", File(CONTENT)), sha256=SHA256)
    fetch(wanted, tmp_path)
    before = len(server.requests)
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == before


def test_a_server_without_ranges_or_lengths_is_enough(server: FileServer, tmp_path: Path) -> None:
    for number, file in enumerate(
        (File(CONTENT, ranges=False), File(CONTENT, ranges=False, says_length=False), File(CONTENT, etag=None))
    ):
        store = tmp_path / str(number)
        assert fetch(plan(server.serve("/m.gguf", file)), store).read_bytes() == CONTENT


def test_a_redirected_file_arrives(server: FileServer, tmp_path: Path) -> None:
    server.serve("/real", File(CONTENT))
    url = server.serve("/m.gguf", File(redirect="/real?signature=x"))
    assert fetch(plan(url), tmp_path).read_bytes() == CONTENT


# --- cuts and resumes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [QUICK, ONE_STREAM])
def test_a_cut_connection_is_resumed_where_it_broke(
    server: FileServer, tmp_path: Path, settings: DownloadSettings
) -> None:
    # More cuts than attempts: a connection that brings bytes resets the count of attempts.
    url = server.serve("/m.gguf", File(CONTENT, cut_after=200_000, cuts=10))
    assert fetch(plan(url, sha256=SHA256), tmp_path, settings=settings).read_bytes() == CONTENT
    # The interrupted parts may be sent twice, but never the whole file again.
    assert server.sent("/m.gguf") < 1.5 * len(CONTENT)


def test_without_ranges_a_cut_begins_anew_and_ends_after_the_attempts(server: FileServer, tmp_path: Path) -> None:
    file = File(CONTENT, ranges=False, cut_after=100_000, cuts=2)
    url = server.serve("/m.gguf", file)
    assert fetch(plan(url), tmp_path / "a").read_bytes() == CONTENT
    file.cuts = 1000
    with pytest.raises(errors.SourceUnreachable):
        fetch(plan(url), tmp_path / "b")
    assert file.cuts == 1000 - QUICK.attempts - 1  # one more request was for the size
    assert in_place(tmp_path / "b") == []


def test_busy_answers_are_waited_for(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT, statuses=[503, 429, 500]))
    assert fetch(plan(url), tmp_path).read_bytes() == CONTENT


def test_a_server_that_stays_away_is_named(server: FileServer, tmp_path: Path) -> None:
    with FileServer() as gone:
        url = gone.url("/m.gguf")
    with pytest.raises(errors.SourceUnreachable, match="refused"):
        fetch(plan(url), tmp_path)


def test_a_stalled_connection_is_left_and_the_rest_is_fetched(server: FileServer, tmp_path: Path) -> None:
    stall = threading.Event()
    url = server.serve("/m.gguf", File(CONTENT, stall=stall))
    threading.Timer(1.0, stall.set).start()
    settings = DownloadSettings(**{**QUICK.__dict__, "stall_timeout_s": 0.3, "attempts": 20})
    assert fetch(plan(url, sha256=SHA256), tmp_path, settings=settings).read_bytes() == CONTENT


def test_a_cancelled_download_keeps_what_has_arrived(server: FileServer, tmp_path: Path) -> None:
    file = File(CONTENT, bytes_per_s=1_000_000)
    url = server.serve("/m.gguf", file)
    cancel = threading.Event()

    def cancel_in_the_middle() -> None:
        eventually(lambda: server.sent("/m.gguf") > 400_000, what="bytes")
        cancel.set()

    threading.Thread(target=cancel_in_the_middle, daemon=True).start()
    with pytest.raises(errors.Cancelled):
        fetch(plan(url), tmp_path, settings=ONE_STREAM, cancel=cancel)
    assert in_place(tmp_path) == []
    arrived = json.loads((slot(tmp_path) / ".m.gguf.state.json").read_text())["segments"][0][1]
    assert 100_000 < arrived < len(CONTENT), "neither before anything had come nor after all of it"
    file.bytes_per_s = None
    before = len(server.requests)
    assert fetch(plan(url, sha256=SHA256), tmp_path, settings=ONE_STREAM).read_bytes() == CONTENT
    assert [request.range for request in server.requests[before:]] == [
        "bytes=0-0",
        f"bytes={arrived}-{len(CONTENT) - 1}",
    ]


def test_a_cancel_during_a_stall_does_not_wait_for_the_server(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT, stall=threading.Event()))
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    settings = DownloadSettings(**{**QUICK.__dict__, "stall_timeout_s": 60.0})
    began = time.monotonic()
    with pytest.raises(errors.Cancelled):
        fetch(plan(url), tmp_path, settings=settings, cancel=cancel)
    assert time.monotonic() - began < 30, "the stall itself lasts for a minute"


def test_a_killed_process_is_resumed_by_the_next(server: FileServer, tmp_path: Path) -> None:
    file = File(CONTENT, bytes_per_s=150_000)
    url = server.serve("/m.gguf", file)
    child = start_child(url, tmp_path)
    state = slot(tmp_path) / ".m.gguf.state.json"
    deadline = time.monotonic() + 30
    while not state.exists() or sum(at - first for first, at, _ in json.loads(state.read_text())["segments"]) < 500_000:
        assert time.monotonic() < deadline, child.poll()
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert in_place(tmp_path) == []
    file.bytes_per_s = None
    before = server.sent("/m.gguf")
    assert fetch(plan(url, sha256=SHA256), tmp_path).read_bytes() == CONTENT
    assert server.sent("/m.gguf") - before < len(CONTENT) - 400_000


# --- files that change, and wrong sizes and checksums -----------------------------------------------------------------


def test_a_file_that_changed_since_the_cut_is_fetched_anew(server: FileServer, tmp_path: Path) -> None:
    other = b"GGUF" + bytes(2 << 20)
    file = File(CONTENT, bytes_per_s=200_000)
    url = server.serve("/m.gguf", file)
    cancel = threading.Event()

    def cancel_in_the_middle() -> None:
        eventually(lambda: server.sent("/m.gguf") > 300_000, what="bytes")
        cancel.set()

    threading.Thread(target=cancel_in_the_middle, daemon=True).start()
    with pytest.raises(errors.Cancelled):
        fetch(plan(url), tmp_path, cancel=cancel)
    file.content, file.etag, file.bytes_per_s = other, '"v2"', None
    assert fetch(plan(url), tmp_path).read_bytes() == other


def test_a_file_that_changes_under_way_is_fetched_anew_and_never_mixed(server: FileServer, tmp_path: Path) -> None:
    for number, honours in enumerate((True, False)):
        other = b"GGUF" + bytes(3 << 20)
        file = File(CONTENT, bytes_per_s=200_000, cut_after=150_000, cuts=1000, honours_if_range=honours)
        url = server.serve("/m.gguf", file)
        before = server.sent("/m.gguf")

        def change(file: File = file, other: bytes = other, before: int = before) -> None:
            # Each of the four streams has been cut once by then.
            eventually(lambda: server.sent("/m.gguf") - before > 700_000, what="bytes")
            file.content, file.etag, file.bytes_per_s, file.cuts = other, '"v2"', None, 0

        threading.Thread(target=change, daemon=True).start()
        assert fetch(plan(url), tmp_path / str(number)).read_bytes() == other


def test_another_size_than_planned_is_refused_before_a_byte_is_stored(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT))
    with pytest.raises(errors.SizeMismatch, match=f"{len(CONTENT)} bytes instead of 5"):
        fetch(plan(url, size_bytes=5), tmp_path)
    assert [request.range for request in server.requests] == ["bytes=0-0"]
    url = server.serve("/n.gguf", File(CONTENT, ranges=False, says_length=False))
    with pytest.raises(errors.SizeMismatch, match="larger than 5"):
        fetch(plan(url, size_bytes=5), tmp_path)
    assert in_place(tmp_path) == left_over(tmp_path) == []


def test_a_server_that_promises_more_than_it_sends_never_gets_a_file_into_place(
    server: FileServer, tmp_path: Path
) -> None:
    url = server.serve("/m.gguf", File(CONTENT, ranges=False, claims_length=len(CONTENT) + 10))
    with pytest.raises(errors.SourceUnreachable):
        fetch(plan(url), tmp_path)
    assert in_place(tmp_path) == []


def test_a_wrong_checksum_names_both_and_leaves_nothing(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT))
    with pytest.raises(errors.ChecksumMismatch) as caught:
        fetch(plan(url, sha256="0" * 64), tmp_path)
    assert SHA256 in caught.value.message
    assert "0" * 64 in caught.value.message
    assert in_place(tmp_path) == left_over(tmp_path) == []


def test_a_file_in_place_stays_until_its_successor_is_whole(server: FileServer, tmp_path: Path) -> None:
    other = b"GGUF" + bytes(1000)
    file = File(other)
    url = server.serve("/m.gguf", file)
    path = fetch(plan(url), tmp_path)
    with pytest.raises(errors.ChecksumMismatch):
        fetch(plan(url, sha256=SHA256), tmp_path)
    assert path.read_bytes() == other
    file.content, file.etag = CONTENT, '"v2"'
    fetch(plan(url, sha256=SHA256), tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_damaged_file_is_found_out_by_its_checksum_and_replaced(server: FileServer, tmp_path: Path) -> None:
    wanted = plan(server.serve("/m.gguf", File(CONTENT)), sha256=SHA256)
    path = fetch(wanted, tmp_path)
    damaged = bytearray(CONTENT)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT


def test_a_page_instead_of_a_model_is_noticed_at_once(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(b"<!doctype html>" + bytes(20 << 20)))
    with pytest.raises(errors.GgufInvalid, match="begins with"):
        fetch(plan(url), tmp_path, settings=ONE_STREAM)
    assert in_place(tmp_path) == left_over(tmp_path) == []
    assert fetch(plan(url, file_name="m.bin"), tmp_path).stat().st_size == 15 + (20 << 20)


def test_an_empty_file_is_refused(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(b""))
    with pytest.raises(errors.SizeMismatch, match="empty"):
        fetch(plan(url), tmp_path)


@pytest.mark.parametrize("field", ["cache_key", "file_name"])
@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/../b", "a//b", "a\0b", ".hidden", "x" * 300])
def test_a_plan_cannot_leave_its_directory(server: FileServer, tmp_path: Path, field: str, name: str) -> None:
    url = server.serve("/m.gguf", File(CONTENT))
    with pytest.raises(errors.PlanInvalid):
        fetch(plan(url, **{field: name}), tmp_path)
    assert server.requests == []


def test_a_private_address_is_not_dialled_unless_allowed(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT))
    with pytest.raises(errors.SourceRefused):
        fetch(plan(url), tmp_path, policy=SourcePolicy())
    assert server.requests == []


# --- many at once -----------------------------------------------------------------------------------------------------


def start_child(url: str, store: Path) -> subprocess.Popen[str]:
    """Download in a separate process."""
    script = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from agent.contract import FilePlan\n"
        "from agent.server.models.download import DownloadSettings, download\n"
        "from agent.sources.source_policy import SourcePolicy\n"
        "plan = FilePlan(source=sys.argv[1], cache_key='0123456789abcdef', file_name='m.gguf')\n"
        "settings = DownloadSettings(parallel_from_bytes=1 << 20, chunk_bytes=1 << 14, save_interval_s=0.05)\n"
        "print(download(plan, Path(sys.argv[2]), policy=SourcePolicy(('127.0.0.1',)),\n"
        "    on_progress=lambda done, total: None, cancel=threading.Event(), settings=settings))\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", script, url, str(store)], stdout=subprocess.PIPE, text=True, cwd=root
    )


def test_many_threads_and_processes_download_once(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT, bytes_per_s=4_000_000))
    children = [start_child(url, tmp_path) for _ in range(2)]
    results: list[bytes] = []
    seen: list[tuple[int, int | None]] = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch(plan(url), tmp_path, seen=seen).read_bytes()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for child in children:
        assert child.wait(60) == 0
        assert child.stdout is not None
        child.stdout.close()
    assert results == [CONTENT] * 4
    assert server.sent("/m.gguf") <= len(CONTENT) + 1
    assert any(0 < done < len(CONTENT) for done, _ in seen)


# --- full disks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root; run this test in a container or as root")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_disk_that_is_too_small_is_named_before_the_download(server: FileServer, small_disk: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT))
    with pytest.raises(errors.NoSpace, match="free some space"):
        fetch(plan(url), small_disk)
    assert [request.range for request in server.requests] == ["bytes=0-0"]


def test_a_disk_that_fills_up_under_way_is_named_and_freed_again(server: FileServer, small_disk: Path) -> None:
    # The length is unknown, so the lack of space shows only when the disk is full.
    url = server.serve("/m.gguf", File(CONTENT, ranges=False, says_length=False))
    with pytest.raises(errors.NoSpace, match="No space left"):
        fetch(plan(url), small_disk)
    assert in_place(small_disk) == left_over(small_disk) == []
    usage = os.statvfs(small_disk)
    assert usage.f_bavail > 0.9 * usage.f_blocks
    small = b"GGUF" + bytes(1 << 20)
    assert fetch(plan(server.serve("/n.gguf", File(small))), small_disk).read_bytes() == small


def test_a_file_size_limit_is_named(server: FileServer, tmp_path: Path) -> None:
    url = server.serve("/m.gguf", File(CONTENT))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(errors.NoSpace, match="File too large"):
            fetch(plan(url), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert in_place(tmp_path) == []


def test_a_store_that_cannot_be_made_is_named(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file")
    with pytest.raises(errors.StoreFailed, match="store"):
        fetch(plan(server.serve("/m.gguf", File(CONTENT))), tmp_path / "store")


# --- local files ------------------------------------------------------------------------------------------------------


def test_a_local_file_is_used_where_it_lies(tmp_path: Path) -> None:
    source = tmp_path / "models" / "x.gguf"
    source.parent.mkdir()
    source.write_bytes(CONTENT)
    policy = SourcePolicy(allowed_host_path_roots=(str(source.parent),))
    store = tmp_path / "store"
    for address in (str(source), f"file://{source}", f"file://localhost{source}"):
        assert fetch(plan(address, sha256=SHA256, size_bytes=len(CONTENT)), store, policy=policy) == source
    with pytest.raises(errors.ChecksumMismatch):
        fetch(plan(str(source), sha256="0" * 64), store, policy=policy)
    with pytest.raises(errors.SizeMismatch):
        fetch(plan(str(source), size_bytes=1), store, policy=policy)
    with pytest.raises(errors.SourceRefused, match="allowed-host-path-roots"):
        fetch(plan(str(source)), store)
    with pytest.raises(errors.SourceNotFound):
        fetch(plan(str(source.parent / "y.gguf")), store, policy=policy)
    with pytest.raises(errors.PlanInvalid):
        fetch(plan("pvc://bucket/x.gguf"), store, policy=policy)
    assert source.read_bytes() == CONTENT


def test_a_local_file_is_hashed_again_only_when_it_changed(tmp_path: Path) -> None:
    source = tmp_path / "x.gguf"
    source.write_bytes(CONTENT)
    policy = SourcePolicy(allowed_host_path_roots=(str(tmp_path),))
    wanted = plan(str(source), sha256=SHA256)
    fetch(wanted, tmp_path / "store", policy=policy)
    [remembered] = (tmp_path / "store").rglob("*.json")
    entry = json.loads(remembered.read_text())
    assert entry["sha256"] == SHA256
    # The recorded digest is trusted while the file is unchanged: a wrong record shows that the file was not hashed
    # again.
    remembered.write_text(json.dumps({**entry, "sha256": "f" * 64}))
    with pytest.raises(errors.ChecksumMismatch, match="f" * 64):
        fetch(wanted, tmp_path / "store", policy=policy)
    with contextlib.suppress(FileNotFoundError):
        os.utime(source)
    assert fetch(wanted, tmp_path / "store", policy=policy) == source
