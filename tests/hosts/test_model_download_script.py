"""The downloader's script, run for real: a shell, curl, a local HTTP server with faults.

Tests run with the system's shell and, where it is installed, with busybox, whose tools the init image has. Ranges
(test_model_download_ranges) and sets, S3, tokens and refreshing (test_model_download_sources) have separate modules.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.downloader import download_script
from tests.support import needs
from tests.support.certificates import own_certificate
from tests.support.downloader import ONE_SHELL, SHELLS, Downloader, last_line, small_disk, wait_for
from tests.support.file_server import FileServer, serving

BODY = os.urandom(3_000_000)
DIGEST = hashlib.sha256(BODY).hexdigest()


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


def test_a_report_that_has_just_begun_ends(downloader: Downloader) -> None:
    functions = download_script().partition('\nwhere=$(shown "${MODEL_SOURCE:-}")')[0]
    loop = 'trap "exit 1" TERM\nn=0\nwhile [ "$n" -lt 50 ]; do report; hush; n=$((n + 1)); done\n'
    environment = {"PATH": downloader.path, "CACHE_DIR": str(downloader.cache)}
    ended = subprocess.run([*downloader.shell, "-c", f"{functions}\n{loop}"], env=environment, timeout=60, check=False)
    assert ended.returncode == 0


def test_a_file_is_fetched_once_and_then_found(downloader: Downloader, server: FileServer) -> None:
    first = downloader.run(server.url)
    assert first.returncode == 0, first.stderr
    assert downloader.model.read_bytes() == BODY
    assert downloader.leftovers() == set()
    again = downloader.run(server.url)
    assert again.returncode == 0, again.stderr
    assert server.whole == 1


def test_a_download_cut_in_the_middle_goes_on_where_it_stopped(downloader: Downloader, server: FileServer) -> None:
    server.cut_after = 1_300_000
    result = downloader.run(server.url, sha256=DIGEST)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY
    assert (server.whole, server.partial) == (1, 1)


def test_a_killed_download_is_resumed_by_the_next_pod(downloader: Downloader, server: FileServer) -> None:
    server.chunk_pause_s = 0.1
    killed = downloader.start(server.url, HOSTNAME="pod-a")
    partial = downloader.cache / ".m.gguf.partial"
    wait_for(lambda: partial.exists() and partial.stat().st_size > 0)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not downloader.model.exists()
    assert (downloader.cache / ".m.gguf.lock").is_dir()
    server.chunk_pause_s = 0
    result = downloader.run(server.url, sha256=DIGEST, HOSTNAME="pod-b")
    assert result.returncode == 0, result.stderr
    assert "Taking over" in result.stderr
    assert downloader.model.read_bytes() == BODY
    assert (server.whole, server.partial) == (1, 1)
    assert downloader.leftovers() == {".m.gguf.sha256"}


def test_a_terminated_download_gives_its_lock_back(downloader: Downloader, server: FileServer) -> None:
    server.chunk_pause_s = 0.1
    process = downloader.start(server.url)
    wait_for(lambda: server.whole == 1)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.strip().splitlines()[-1].startswith("ModelTransferFailed: ")
    assert not (downloader.cache / ".m.gguf.lock").exists()
    assert not downloader.model.exists()


def test_two_pods_at_once_download_once(downloader: Downloader, server: FileServer) -> None:
    server.chunk_pause_s = 0.1
    both = [downloader.start(server.url, sha256=DIGEST, HOSTNAME=f"pod-{name}") for name in "ab"]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert sum("Waiting" in error for error in errors) == 1
    assert (server.whole, server.partial) == (1, 0)
    assert downloader.model.read_bytes() == BODY


def test_a_slow_owner_with_a_heartbeat_is_waited_for(downloader: Downloader, server: FileServer) -> None:
    server.chunk_pause_s = 0.15  # 30 chunks: longer than the 3 s after which an owner without heartbeats counts as dead
    both = [downloader.start(server.url, HOSTNAME=f"pod-{name}") for name in "ab"]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert not any("Taking over" in error for error in errors)
    assert server.whole == 1


def test_many_waiters_of_a_dead_owner_make_one_successor(busybox: Downloader, server: FileServer) -> None:
    lock = busybox.cache / ".m.gguf.lock"
    lock.mkdir(parents=True)
    (lock / "owner").write_text("pod-dead.1.1\n")
    server.chunk_pause_s = 0.05
    pods = [busybox.start(server.url, HOSTNAME=f"pod-{number}") for number in range(5)]
    errors = [process.communicate(timeout=60)[1] for process in pods]
    assert [process.returncode for process in pods] == [0] * 5, errors
    assert sum("Taking over" in error for error in errors) == 1
    assert (server.whole, server.partial) == (1, 0)
    assert busybox.model.read_bytes() == BODY


def test_a_wrong_sum_is_never_published_and_not_fetched_again(downloader: Downloader, server: FileServer) -> None:
    result = downloader.run(server.url, sha256="0" * 64)
    assert result.returncode == 65
    assert last_line(result).startswith("ModelChecksumMismatch: ")
    assert DIGEST in last_line(result)
    assert not downloader.model.exists()
    assert downloader.leftovers() == {".m.gguf.rejected"}
    again = downloader.run(server.url, sha256="0" * 64)
    assert again.returncode == 65
    assert last_line(again) == last_line(result)
    assert (server.whole, server.not_modified) == (1, 1)


def test_a_corrected_sum_or_file_is_tried_again(downloader: Downloader, server: FileServer) -> None:
    assert downloader.run(server.url, sha256="0" * 64).returncode == 65
    server.body, server.etag = b"GGUF" + BODY[4:], '"two"'
    wanted = hashlib.sha256(server.body).hexdigest()
    result = downloader.run(server.url, sha256=wanted)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == server.body
    assert downloader.leftovers() == {".m.gguf.sha256"}


def test_a_published_file_of_another_sum_stays_until_the_right_one_is_there(
    downloader: Downloader, server: FileServer
) -> None:
    assert downloader.run(server.url).returncode == 0
    assert downloader.run(server.url, sha256="0" * 64).returncode == 65
    assert downloader.model.read_bytes() == BODY
    server.body, server.etag = BODY[::-1], '"two"'
    assert downloader.run(server.url, sha256=hashlib.sha256(server.body).hexdigest()).returncode == 0
    assert downloader.model.read_bytes() == server.body


def test_a_file_changed_between_two_halves_is_fetched_whole(busybox: Downloader, server: FileServer) -> None:
    server.cut_after = 1_000_000
    stop = threading.Event()

    def change() -> None:
        wait_for(lambda: server.whole == 1)
        server.body, server.etag = BODY[::-1], '"two"'
        stop.set()

    threading.Thread(target=change, daemon=True).start()
    result = busybox.run(server.url, RETRY_S="1")
    assert stop.is_set()
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == server.body


def test_a_server_without_ranges_is_asked_from_the_start(downloader: Downloader, server: FileServer) -> None:
    server.ranges, server.cut_after = False, 500_000
    result = downloader.run(server.url)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY
    assert server.whole >= 2


def test_a_complete_partial_file_is_published_without_its_bytes_coming_again(
    downloader: Downloader, server: FileServer
) -> None:
    downloader.cache.mkdir()
    (downloader.cache / ".m.gguf.partial").write_bytes(BODY)
    result = downloader.run(server.url)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY
    assert (server.whole, server.partial) == (0, 0)


def test_halves_of_different_files_are_found_out_by_the_sum(downloader: Downloader, server: FileServer) -> None:
    downloader.cache.mkdir()
    (downloader.cache / ".m.gguf.partial").write_bytes(b"x" * 1_000_000)
    result = downloader.run(server.url, sha256=DIGEST)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY
    assert (server.whole, server.partial) == (1, 1)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "ModelSourceUnauthorized"),
        (403, "ModelSourceUnauthorized"),
        (404, "ModelSourceNotFound"),
        (410, "ModelSourceNotFound"),
        (418, "ModelTransferFailed"),
        (503, "ModelTransferFailed"),
    ],
)
def test_a_refusal_is_named(busybox: Downloader, server: FileServer, status: int, reason: str) -> None:
    server.fail_with = status
    result = busybox.run(server.url)
    assert result.returncode not in (0, 1)
    assert last_line(result).startswith(f"{reason}: {server.url}: the server answered {status}")
    assert not busybox.model.exists()


def test_a_passing_failure_is_overcome(busybox: Downloader, server: FileServer) -> None:
    server.fail_with = 503

    def heal() -> None:
        time.sleep(1.5)
        server.fail_with = None

    threading.Thread(target=heal, daemon=True).start()
    result = busybox.run(server.url, RETRY_S="1")
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY


def test_a_server_that_is_not_there_is_named(busybox: Downloader, server: FileServer) -> None:
    refused = busybox.run("http://127.0.0.1:9/m.gguf")
    assert last_line(refused).startswith("ModelSourceUnreachable: http://127.0.0.1:9/m.gguf: ")
    unknown = busybox.run("http://no-such-host.invalid/m.gguf")
    assert last_line(unknown).startswith("ModelSourceUnreachable: ")


def test_a_server_that_falls_silent_is_left_and_asked_for_the_rest(busybox: Downloader, server: FileServer) -> None:
    server.body, server.chunk_pause_s = BODY[:200_000], 30
    result = busybox.run(server.url, STALL_S="3")
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == server.body
    assert (server.whole, server.partial) == (1, 1)


def test_a_certificate_that_nobody_vouches_for_is_named_and_can_be_vouched_for(
    busybox: Downloader, tmp_path: Path
) -> None:
    own = tmp_path / "custom-certs"
    own.mkdir()
    with serving(BODY, own_certificate(own)) as tls:
        distrusted = busybox.run(tls.url)
        assert distrusted.returncode == 78, distrusted.stderr
        assert last_line(distrusted).startswith("ModelSourceUntrusted: ")
        (own / "server.pem").unlink()
        trusted = busybox.run(tls.url, CA_DIR=str(own))
        assert trusted.returncode == 0, trusted.stderr
        assert busybox.model.read_bytes() == BODY


def test_secrets_in_an_address_stay_out_of_messages(busybox: Downloader, server: FileServer) -> None:
    server.fail_with = 404
    address = server.url.replace("http://", "http://user:hunter2@") + "?X-Signature=s3cret"
    result = busybox.run(address)
    assert "hunter2" not in result.stderr
    assert "s3cret" not in result.stderr
    assert last_line(result).startswith(f"ModelSourceNotFound: {server.url}: ")


def test_a_full_disk_leaves_nothing_behind(downloader: Downloader, server: FileServer) -> None:
    with small_disk(downloader.root, size_bytes=1_000_000):
        result = downloader.run(server.url)
        assert result.returncode == 28, result.stderr
        assert last_line(result).startswith("ModelTransferOutOfSpace: ")
        assert downloader.leftovers() == set()
        assert not downloader.model.exists()


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(downloader: Downloader, server: FileServer) -> None:
    with small_disk(downloader.root, size_bytes=5_000_000):
        server.chunk_pause_s = 0.1
        process = downloader.start(server.url)
        wait_for(lambda: server.whole == 1)
        (downloader.root / "other").write_bytes(b"x" * 4_000_000)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 28, err
        assert err.strip().splitlines()[-1].startswith("ModelTransferOutOfSpace: ")
        assert downloader.leftovers() == set()
        assert not downloader.model.exists()


def test_a_local_file_is_copied_and_verified(downloader: Downloader, server: FileServer, tmp_path: Path) -> None:
    node_file = tmp_path / "node.gguf"
    node_file.write_bytes(BODY)
    for source in ("/srv/models/node.gguf", "file:///srv/models/node.gguf"):
        result = downloader.run(source, sha256=DIGEST, HOST_FILE=str(node_file))
        assert result.returncode == 0, result.stderr
        assert downloader.model.read_bytes() == BODY
        shutil.rmtree(downloader.cache)
    wrong = downloader.run("/srv/models/node.gguf", sha256="0" * 64, HOST_FILE=str(node_file))
    assert wrong.returncode == 65
    assert last_line(wrong).startswith("ModelChecksumMismatch: /srv/models/node.gguf: ")
    assert not downloader.model.exists()
    missing = downloader.run("/srv/models/none.gguf", HOST_FILE=str(tmp_path / "none"))
    assert last_line(missing).startswith("ModelSourceNotFound: /srv/models/none.gguf: ")


def test_an_unwritable_cache_is_named(downloader: Downloader, server: FileServer) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0:  # root may write anywhere
        needs.require("setpriv")
    downloader.root.chmod(0o555)
    for parent in downloader.root.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    if os.geteuid() == 0 and setpriv:
        downloader.shell = [setpriv, "--reuid=65534", "--clear-groups", *downloader.shell]
    result = downloader.run(server.url)
    assert result.returncode == 13, result.stderr
    assert last_line(result).startswith("ModelCacheNotWritable: ")
