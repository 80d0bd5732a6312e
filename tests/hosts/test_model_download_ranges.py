"""The downloader's script with several ranges in parallel, against servers that cut, change, limit and send wrong data.

In every case a file is either correct or absent. Chunks are small here, so that a few megabytes have many.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.downloader import ONE_SHELL, SHELLS, Downloader, last_line, small_disk, wait_for
from tests.support.file_server import FileServer, serving

CHUNK = 1 << 18
BODY = os.urandom(16 * CHUNK + 12_345)
DIGEST = hashlib.sha256(BODY).hexdigest()
SMALL = {"PARALLEL_FROM": "1000000", "CHUNK_BYTES": str(CHUNK), "STREAMS": "4"}


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving(BODY) as state:
        yield state


@pytest.fixture(params=SHELLS)
def downloader(request: pytest.FixtureRequest, tmp_path: Path) -> Downloader:
    return Downloader.with_shell(request.param, tmp_path)


@pytest.fixture
def busybox(tmp_path: Path) -> Downloader:
    return Downloader.with_shell(ONE_SHELL, tmp_path)


def journal(downloader: Downloader) -> list[str]:
    path = downloader.cache / ".m.gguf.ranged.journal"
    return [line for line in path.read_text().splitlines() if line.endswith(" done")] if path.exists() else []


def running(session: int, name: str) -> bool:
    """Return whether a program of that name runs in the session; zombies do not count."""
    listed = subprocess.run(["ps", "-o", "stat=,comm=", "-s", str(session)], capture_output=True, text=True).stdout
    return any(line.split()[1:] == [name] and line[0] != "Z" for line in listed.splitlines())


def test_a_large_file_comes_in_ranges_that_meet(downloader: Downloader, server: FileServer) -> None:
    result = downloader.run(server.url, sha256=DIGEST, **SMALL)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY
    assert (server.whole, server.partial, server.probes) == (0, 17, 1)
    wanted = [f"bytes={at}-{min(at + CHUNK, len(BODY)) - 1}" for at in range(0, len(BODY), CHUNK)]
    assert sorted(server.ranges_asked()) == sorted(wanted)
    assert server.sent_bytes == len(BODY)
    assert downloader.leftovers() == {".m.gguf.sha256"}


def test_a_killed_download_fetches_only_the_rest(downloader: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 1_000_000
    killed = downloader.start(server.url, HOSTNAME="pod-a", **SMALL)
    wait_for(lambda: len(journal(downloader)) >= 6)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not downloader.model.exists()
    kept = journal(downloader)
    server.bytes_per_s = None
    with server.lock:
        server.requests.clear()
    result = downloader.run(server.url, HOSTNAME="pod-b", **SMALL)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY
    # The server may read the last requests of the killed pod only now, so a range can be there twice.
    assert len(set(server.ranges_asked())) == 17 - len(kept)
    assert downloader.leftovers() == set()


def test_four_pods_at_once_download_once(downloader: Downloader, server: FileServer) -> None:
    # All four start before the download ends, and its heartbeat may be late on a busy machine.
    server.bytes_per_s = 300_000
    environment = {"LOCK_STALE_S": "30", **SMALL}
    pods = [downloader.start(server.url, sha256=DIGEST, HOSTNAME=f"pod-{name}", **environment) for name in "abcd"]
    errors = [process.communicate(timeout=60)[1] for process in pods]
    assert [process.returncode for process in pods] == [0] * 4, errors
    assert sum("Waiting" in error for error in errors) == 3
    assert server.sent_bytes == len(BODY)
    assert downloader.model.read_bytes() == BODY


def test_a_terminated_download_stops_all_its_workers(downloader: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 200_000
    process = downloader.start(server.url, **SMALL)
    wait_for(lambda: server.partial >= 4)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.strip().splitlines()[-1].startswith("ModelTransferFailed: ")
    assert not (downloader.cache / ".m.gguf.lock").exists()
    wait_for(lambda: not running(process.pid, "curl"))


def test_each_connection_may_break_in_the_middle(busybox: Downloader, server: FileServer) -> None:
    server.cut_each_after = 100_000
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY
    assert server.sent_bytes == len(BODY)


def test_a_server_that_limits_connections_is_asked_by_fewer(busybox: Downloader, server: FileServer) -> None:
    server.most_at_once, server.bytes_per_s = 2, 4_000_000
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY


@pytest.mark.parametrize("lie", ["whole", "shifted", "short", "long", "unsized", "wrong-tag"])
def test_a_server_that_lies_about_ranges_is_asked_for_the_whole(
    busybox: Downloader, server: FileServer, lie: str
) -> None:
    server.lie = lie
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY
    assert "in one stream" in result.stderr
    assert server.whole >= 1
    assert busybox.leftovers() == set()


def test_right_headers_on_wrong_bytes_are_found_out_by_the_sum(busybox: Downloader, server: FileServer) -> None:
    server.lie = "plausible"
    result = busybox.run(server.url, sha256=DIGEST, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY
    assert server.whole == 1


def test_a_file_that_changes_meanwhile_is_begun_anew(busybox: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 1_500_000
    process = busybox.start(server.url, **SMALL)
    wait_for(lambda: len(journal(busybox)) >= 4)
    server.body, server.etag, server.bytes_per_s = BODY[::-1], '"two"', None
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "Starting anew: " in err
    assert busybox.model.read_bytes() == server.body
    assert server.whole == 0


def test_parts_of_another_version_do_not_count(busybox: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 1_000_000
    killed = busybox.start(server.url, **SMALL)
    wait_for(lambda: len(journal(busybox)) >= 3)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    server.body, server.etag, server.bytes_per_s = BODY[::-1], '"two"', None
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == server.body


def test_a_journal_cut_by_a_crash_is_read_as_far_as_it_is_whole(busybox: Downloader, server: FileServer) -> None:
    busybox.cache.mkdir()
    (busybox.cache / ".m.gguf.ranged").write_bytes(BODY[: 2 * CHUNK])
    (busybox.cache / ".m.gguf.ranged.journal").write_text(f'{len(BODY)} {CHUNK} "one"\n0 done\n1 done\n1')
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY
    assert len(server.ranges_asked()) == 15


def test_a_file_that_vanishes_meanwhile_is_named(busybox: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 1_000_000
    process = busybox.start(server.url, **SMALL)
    wait_for(lambda: len(journal(busybox)) >= 3)
    server.fail_with = 404
    _, err = process.communicate(timeout=30)
    assert process.returncode == 66, err
    assert err.strip().splitlines()[-1] == f"ModelSourceNotFound: {server.url}: the server answered 404"
    assert not busybox.model.exists()


def test_a_failing_server_is_named_once_patience_ends(busybox: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 1_000_000
    process = busybox.start(server.url, **SMALL)
    wait_for(lambda: len(journal(busybox)) >= 3)
    server.fail_with = 503
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75, err
    assert err.strip().splitlines()[-1] == f"ModelTransferFailed: {server.url}: the server answered 503"
    kept = len(journal(busybox))
    assert kept >= 3
    server.fail_with, server.bytes_per_s = None, None
    with server.lock:
        server.requests.clear()
    again = busybox.run(server.url, **SMALL)
    assert again.returncode == 0, again.stderr
    assert busybox.model.read_bytes() == BODY
    assert len(server.ranges_asked()) == 17 - kept


def test_a_busy_server_is_asked_again_when_it_says(busybox: Downloader, server: FileServer) -> None:
    server.fail_with, server.fail_times, server.retry_after_s = 429, 1, 2
    begun = time.monotonic()
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - begun > 2
    assert busybox.model.read_bytes() == BODY


@pytest.mark.parametrize("size_bytes", [CHUNK * 4, CHUNK * 10])
def test_a_disk_that_is_full_or_fills_up_leaves_nothing_behind(
    busybox: Downloader, server: FileServer, size_bytes: int
) -> None:
    server.bytes_per_s = 1_500_000
    with small_disk(busybox.root, size_bytes=size_bytes if size_bytes < len(BODY) // 2 else len(BODY) + CHUNK * 2):
        process = busybox.start(server.url, **SMALL)
        if size_bytes > CHUNK * 4:
            wait_for(lambda: len(journal(busybox)) >= 2)
            (busybox.root / "other").write_bytes(b"x" * CHUNK * 10)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 28, err
        assert err.strip().splitlines()[-1].startswith("ModelTransferOutOfSpace: ")
        assert busybox.leftovers() == set()
        assert not busybox.model.exists()


def test_a_server_without_ranges_or_without_a_length_sends_one_stream(busybox: Downloader, server: FileServer) -> None:
    server.ranges = False
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY
    assert server.whole == 2  # the request for the size got the whole file, too
    busybox.model.unlink()
    server.says_length = False
    result = busybox.run(server.url, **SMALL)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY


def test_a_small_file_comes_in_one_request(busybox: Downloader, server: FileServer) -> None:
    result = busybox.run(server.url, PARALLEL_FROM=str(len(BODY) + 1))
    assert result.returncode == 0, result.stderr
    assert (server.whole, server.partial, server.probes) == (1, 0, 1)


def test_a_lost_lock_stops_a_download(busybox: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 200_000
    process = busybox.start(server.url, **SMALL)
    wait_for(lambda: server.partial >= 4)
    (busybox.cache / ".m.gguf.lock" / "owner").write_text("pod-other.1.1\n")
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not busybox.model.exists()
    assert (busybox.cache / ".m.gguf.lock" / "owner").read_text() == "pod-other.1.1\n"


def test_progress_is_told_while_ranges_come_and_at_the_end(busybox: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 500_000
    process = busybox.start(server.url, PROGRESS_S="0.3", **SMALL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    told = [line.split(" ") for line in err.splitlines() if line.startswith("progress ")]
    assert len(told) >= 4
    assert all(fields[2:] == [str(len(BODY)), "m.gguf"] for fields in told[:-1])
    assert told[-1] == ["progress", str(len(BODY)), str(len(BODY)), "-"]
    numbers = [int(fields[1]) for fields in told]
    assert numbers == sorted(numbers)
    assert any(0 < number < len(BODY) for number in numbers[:-1])
    assert last_line(subprocess.CompletedProcess([], 0, "", err)).startswith("progress ")
