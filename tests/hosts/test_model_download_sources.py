"""The sources of the downloader's script: sets of files, S3, the Hub with a token, sources that change."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import sigv4
from tests.support.downloader import ONE_SHELL, SHELLS, Downloader, last_line, wait_for
from tests.support.file_server import FileServer, Request, serving

BODY = os.urandom(300_000)
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": 'wJalr/+"quoted\\"=EXAMPLEKEY'}
RANGES = {"PARALLEL_FROM": "100000", "CHUNK_BYTES": "65536", "STREAMS": "3"}


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


def hub_host(server: FileServer) -> str:
    return server.root.removeprefix("http://")


def authorizations(server: FileServer) -> set[str | None]:
    return {request.headers.get("Authorization") for request in server.requests}


@contextlib.contextmanager
def command_lines(session: int) -> Iterator[list[bytes]]:
    """Collect the command lines of all processes of a session for as long as the block runs."""
    seen: set[bytes] = set()
    found: list[bytes] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError, ValueError):
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == session:
                        seen.add((process / "cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        found.extend(seen)


# --- Sets of files ----------------------------------------------------------------------------------------------------


def test_a_set_lies_as_at_its_source(downloader: Downloader, server: FileServer) -> None:
    files = {
        "UD-Q4/m-00001-of-00002.gguf": os.urandom(250_000),
        "UD-Q4/m-00002-of-00002.gguf": os.urandom(150_000),
        "mm proj & more/ä #1%20+?.gguf": b"GGUF" * 100,
    }
    server.files = {f"/org/repo/{name}": body for name, body in files.items()}
    names = "\n".join(files)
    result = downloader.run(f"{server.root}/org/repo/", MODEL_FILES=names, **RANGES)
    assert result.returncode == 0, result.stderr
    assert {name: (downloader.cache / name).read_bytes() for name in files} == files
    total = sum(len(body) for body in files.values())
    assert last_line(result) == f"progress {total} {total} -"
    assert server.whole == 1
    assert server.sent_bytes == total
    assert not (downloader.cache / ".files.lock").exists()
    server.requests.clear()
    again = downloader.run(f"{server.root}/org/repo/", MODEL_FILES=names + "\n", **RANGES)
    assert again.returncode == 0, again.stderr
    assert (again.stderr, server.requests) == ("", [])


def test_a_sum_is_the_first_files(busybox: Downloader, server: FileServer) -> None:
    server.files = {"/a.gguf": b"first", "/b.gguf": b"second"}
    wrong = busybox.run(f"{server.root}/", sha256="0" * 64, MODEL_FILES="a.gguf\nb.gguf")
    assert wrong.returncode == 65, wrong.stderr
    assert last_line(wrong).startswith(f"ModelChecksumMismatch: {server.root}/a.gguf: ")
    right = "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e"
    result = busybox.run(f"{server.root}/", sha256=right, MODEL_FILES="a.gguf\nb.gguf")
    assert result.returncode == 0, result.stderr
    assert (busybox.cache / "b.gguf").read_bytes() == b"second"


def test_a_set_that_lacks_a_file_names_it_and_goes_on_later(busybox: Downloader, server: FileServer) -> None:
    server.files = {"/a.gguf": b"first"}
    result = busybox.run(f"{server.root}/", MODEL_FILES="a.gguf\nsub/b.gguf")
    assert result.returncode == 66, result.stderr
    assert last_line(result) == f"ModelSourceNotFound: {server.root}/sub/b.gguf: the server answered 404"
    server.files["/sub/b.gguf"] = b"second"
    server.requests.clear()
    assert busybox.run(f"{server.root}/", MODEL_FILES="a.gguf\nsub/b.gguf").returncode == 0
    assert {request.path for request in server.requests} == {"/sub/b.gguf"}


def test_progress_of_a_set_is_that_of_all_its_files(busybox: Downloader, server: FileServer) -> None:
    server.files = {"/a.gguf": b"a" * 300_000, "/b.gguf": b"b" * 500_000}
    server.bytes_per_s = 150_000
    result = busybox.run(f"{server.root}/", MODEL_FILES="a.gguf\nb.gguf", PROGRESS_S="0.3")
    assert result.returncode == 0, result.stderr
    told = [line.split(" ") for line in result.stderr.splitlines() if line.startswith("progress ")]
    assert {fields[2] for fields in told} == {"800000"}
    numbers = {name: [int(f[1]) for f in told if f[3] == name] for name in ("a.gguf", "b.gguf", "-")}
    assert max(numbers["a.gguf"]) <= 300_000 <= min(numbers["b.gguf"])
    assert numbers["-"] == [800_000]


@pytest.mark.parametrize(
    "files",
    ["../x", "a/../../x", "a/..", "/etc/x", "a\n\nb", "a\n/b", "a\\b", "a\tb", "a\rb", "./a", "a/", "a//b", "a\n.."],
)
def test_a_path_that_leads_elsewhere_is_refused(busybox: Downloader, server: FileServer, files: str) -> None:
    server.files = {"/x": b"x", "/a": b"a", "/b": b"b"}
    result = busybox.run(f"{server.root}/", MODEL_FILES=files)
    assert result.returncode == 64, result.stderr
    assert last_line(result).startswith(f"ModelSourceInvalid: {server.root}/: ")
    assert server.requests == []
    assert not busybox.cache.exists()


@pytest.mark.parametrize("files", ["..a/b..c/...", "a b", "*", "[x]{1,2}", "-o", "$(reboot)`x`'\""])
def test_odd_names_are_names(busybox: Downloader, server: FileServer, files: str) -> None:
    server.files = {f"/dir/{files}": BODY}
    result = busybox.run(f"{server.root}/dir/", MODEL_FILES=files)
    assert result.returncode == 0, result.stderr
    assert (busybox.cache / files).read_bytes() == BODY


# --- S3 ---------------------------------------------------------------------------------------------------------------


def only_signed(server: FileServer, *, token: str = "", region: str = "us-east-1") -> None:
    def refuse(request: Request) -> str | None:
        return sigv4.refusal(
            request.method,
            request.path,
            request.headers,
            key_id=KEYS["AWS_ACCESS_KEY_ID"],
            secret=KEYS["AWS_SECRET_ACCESS_KEY"],
            region=region,
            token=token,
        )

    server.refuse = refuse


def test_the_servers_check_of_a_signature_agrees_with_amazons_own_example() -> None:
    headers = {
        "Host": "examplebucket.s3.amazonaws.com",
        "Range": "bytes=0-9",
        "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date": "20130524T000000Z",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    }
    keys = {
        "key_id": "AKIAIOSFODNN7EXAMPLE",
        "secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "region": "us-east-1",
    }
    assert sigv4.refusal("GET", "/test.txt", headers, **keys) is None
    assert sigv4.refusal("GET", "/test2.txt", headers, **keys) == "the signature does not match"


@pytest.mark.parametrize("ranges", [{}, RANGES])
def test_an_object_is_fetched_with_a_signature(
    downloader: Downloader, server: FileServer, ranges: dict[str, str]
) -> None:
    only_signed(server, token="session/+=", region="eu-west-3")
    server.files = {"/models/dir/my model+1.gguf": BODY}
    result = downloader.run(
        "s3://models/dir/my model+1.gguf",
        S3_BUCKET="models",
        S3_KEY="dir/my model+1.gguf",
        AWS_ENDPOINT_URL=f"{server.root}/",
        AWS_REGION="eu-west-3",
        AWS_SESSION_TOKEN="session/+=",
        **KEYS,
        **ranges,
    )
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY
    assert server.partial == (5 if ranges else 0)


def test_a_set_of_objects_lies_below_a_prefix(busybox: Downloader, server: FileServer) -> None:
    only_signed(server)
    server.files = {"/models/llama/q4/a.gguf": b"first", "/models/llama/b.gguf": b"second"}
    result = busybox.run(
        "s3://models/llama",
        S3_BUCKET="models",
        S3_PREFIX="llama",
        MODEL_FILES="q4/a.gguf\nb.gguf",
        AWS_ENDPOINT_URL=server.root,
        **KEYS,
    )
    assert result.returncode == 0, result.stderr
    assert (busybox.cache / "q4/a.gguf").read_bytes() == b"first"
    assert (busybox.cache / "b.gguf").read_bytes() == b"second"


def test_wrong_keys_are_named_and_no_keys_are_no_signature(busybox: Downloader, server: FileServer) -> None:
    only_signed(server)
    place = {"S3_BUCKET": "models", "S3_KEY": "m.gguf", "AWS_ENDPOINT_URL": server.root}
    wrong = busybox.run("s3://models/m.gguf", **place, **{**KEYS, "AWS_SECRET_ACCESS_KEY": "other"})
    assert wrong.returncode == 77, wrong.stderr
    assert last_line(wrong).startswith(f"ModelSourceUnauthorized: {server.root}/models/m.gguf: ")
    assert "other" not in wrong.stderr
    server.refuse = None
    server.requests.clear()
    anonymous = busybox.run("s3://models/m.gguf", **place)
    assert anonymous.returncode == 0, anonymous.stderr
    assert authorizations(server) == {None}


def test_a_bucket_without_a_key_is_no_model(busybox: Downloader, server: FileServer) -> None:
    result = busybox.run("s3://models/", S3_BUCKET="models", AWS_ENDPOINT_URL=server.root)
    assert (result.returncode, server.requests) == (64, [])
    assert last_line(result).startswith("ModelSourceInvalid: s3://models")


# --- Tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_goes_to_the_first_host_alone(downloader: Downloader, server: FileServer) -> None:
    with serving(BODY) as elsewhere:
        server.redirect_to = elsewhere.root.replace("127.0.0.1", "localhost")
        result = downloader.run(server.url, HF_TOKEN='hf_s3"\\cret\n', HUB_HOST=hub_host(server), **RANGES)
        assert result.returncode == 0, result.stderr
        assert downloader.model.read_bytes() == BODY
        assert authorizations(server) == {'Bearer hf_s3"\\cret'}
        assert authorizations(elsewhere) == {None}
        assert elsewhere.partial == 5


def test_the_hubs_token_is_for_the_hub(busybox: Downloader, server: FileServer) -> None:
    for hub in ("", "huggingface.co", "127.0.0.2", "a.hf.co:80", "evil@127.0.0.1"):
        server.requests.clear()
        result = busybox.run(server.url, HF_TOKEN="hf_secret", **({"HUB_HOST": hub} if hub else {}))
        assert result.returncode == 0, result.stderr
        assert authorizations(server) == {None}
        busybox.model.unlink()
    server.requests.clear()
    assert busybox.run(server.url, HF_TOKEN="hf_secret", HUB_HOST="127.0.0.1").returncode == 0
    assert authorizations(server) == {"Bearer hf_secret"}


def test_a_sources_token_goes_to_any_source(busybox: Downloader, server: FileServer) -> None:
    assert busybox.run(server.url, SOURCE_TOKEN="s3cret", HF_TOKEN="hf_secret").returncode == 0
    assert authorizations(server) == {"Bearer s3cret"}


def test_a_host_that_only_looks_like_the_hub_gets_no_token(busybox: Downloader, server: FileServer) -> None:
    port = server.root.rpartition(":")[2]
    address = f"http://huggingface.co@127.0.0.1:{port}/huggingface.co/m.gguf?https://huggingface.co/"
    assert busybox.run(address, HF_TOKEN="hf_secret").returncode == 0
    assert "Bearer hf_secret" not in authorizations(server)


@pytest.mark.parametrize("ranges", [{}, RANGES])
def test_no_secret_stands_on_a_command_line(downloader: Downloader, server: FileServer, ranges: dict[str, str]) -> None:
    server.bytes_per_s = 200_000
    address = f"http://user:hunter2@{hub_host(server)}/m.gguf?X-Signature=signed"
    process = downloader.start(address, SOURCE_TOKEN="t0ken", **ranges)
    with command_lines(process.pid) as seen:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert any(line.startswith(b"curl") for line in seen)
    lines = b" ".join(seen)
    assert not [secret for secret in (b"hunter2", b"signed", b"t0ken") if secret in lines]


def test_no_key_stands_on_a_command_line(busybox: Downloader, server: FileServer) -> None:
    server.bytes_per_s = 200_000
    place = {"S3_BUCKET": "models", "S3_KEY": "m.gguf", "AWS_ENDPOINT_URL": server.root}
    process = busybox.start("s3://models/m.gguf", AWS_SESSION_TOKEN="sess10n", **place, **KEYS, **RANGES)
    with command_lines(process.pid) as seen:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert any(line.startswith(b"curl") for line in seen)
    lines = b" ".join(seen)
    assert not [secret for secret in (b"wJalr", b"AKIDEXAMPLE", b"sess10n") if secret in lines]


# --- Sources that change ----------------------------------------------------------------------------------------------

ON_CHANGE = {"REFRESH_POLICY": "OnChange"}


@pytest.mark.parametrize("ranges", [{}, RANGES])
def test_a_changed_source_is_fetched_again_where_asked(
    downloader: Downloader, server: FileServer, ranges: dict[str, str]
) -> None:
    assert downloader.run(server.url, **ON_CHANGE, **ranges).returncode == 0
    sent = server.sent_bytes
    same = downloader.run(server.url, **ON_CHANGE, **ranges)
    assert (same.returncode, same.stderr, server.sent_bytes) == (0, "", sent)
    server.body, server.etag = BODY[::-1], '"two"'
    assert downloader.run(server.url, **ranges).returncode == 0
    assert downloader.model.read_bytes() == BODY
    result = downloader.run(server.url, **ON_CHANGE, **ranges)
    assert result.returncode == 0, result.stderr
    assert downloader.model.read_bytes() == BODY[::-1]
    assert downloader.run(server.url, **ON_CHANGE).stderr == ""


def test_the_old_copy_stays_until_the_new_one_is_whole(busybox: Downloader, server: FileServer) -> None:
    assert busybox.run(server.url).returncode == 0
    server.body, server.etag, server.bytes_per_s = BODY[::-1], '"two"', 200_000
    process = busybox.start(server.url, **ON_CHANGE)
    wait_for(lambda: server.whole == 2)
    assert busybox.model.read_bytes() == BODY
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert busybox.model.read_bytes() == BODY[::-1]


def test_a_source_that_cannot_be_asked_leaves_the_old_copy(busybox: Downloader, server: FileServer) -> None:
    assert busybox.run(server.url).returncode == 0
    for fail_with, why in ((503, "the server answered 503"), (404, "the server answered 404")):
        server.fail_with = fail_with
        result = busybox.run(server.url, **ON_CHANGE)
        assert result.returncode == 0
        assert last_line(result).startswith("Keeping what is there: ")
        assert last_line(result).endswith(why)
    gone = busybox.run("http://127.0.0.1:9/m.gguf", **ON_CHANGE)
    assert gone.returncode == 0
    assert "Keeping what is there: http://127.0.0.1:9/m.gguf cannot be asked" in gone.stderr
    assert busybox.model.read_bytes() == BODY


def test_without_a_note_of_the_source_the_length_decides(busybox: Downloader, server: FileServer) -> None:
    busybox.cache.mkdir()
    busybox.model.write_bytes(b"x" * len(BODY))
    assert busybox.run(server.url, **ON_CHANGE).returncode == 0
    assert server.whole == 0
    busybox.model.write_bytes(b"x" * (len(BODY) - 1))
    assert busybox.run(server.url, **ON_CHANGE).returncode == 0
    assert busybox.model.read_bytes() == BODY


def test_a_file_with_a_sum_is_right_whatever_the_source_has(busybox: Downloader, server: FileServer) -> None:
    digest = hashlib.sha256(BODY).hexdigest()
    assert busybox.run(server.url, sha256=digest).returncode == 0
    server.body, server.etag = BODY[::-1], '"two"'
    server.requests.clear()
    assert busybox.run(server.url, sha256=digest, **ON_CHANGE).returncode == 0
    assert server.requests == []


def test_a_changed_file_of_the_node_is_copied_again(busybox: Downloader, tmp_path: Path) -> None:
    node_file = tmp_path / "node.gguf"
    node_file.write_bytes(BODY)
    os.utime(node_file, (1_000, 1_000))
    here = {"HOST_FILE": str(node_file), **ON_CHANGE}
    assert busybox.run("/srv/models/node.gguf", **here).returncode == 0
    assert busybox.run("/srv/models/node.gguf", **here).stderr == ""
    node_file.write_bytes(BODY[::-1])
    os.utime(node_file, (2_000, 2_000))
    assert busybox.run("/srv/models/node.gguf", **here).returncode == 0
    assert busybox.model.read_bytes() == BODY[::-1]


# --- Where it runs ----------------------------------------------------------------------------------------------------


def test_nothing_but_the_cache_need_be_writable(busybox: Downloader, server: FileServer, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a read-only root file system needs root")
    busybox.shell = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(busybox.root), *busybox.shell]
    (busybox.root / "ca").mkdir()
    result = busybox.run(server.url, TMPDIR="/tmp", CA_DIR=str(busybox.root / "ca"), **RANGES)
    assert result.returncode == 0, result.stderr
    assert busybox.model.read_bytes() == BODY
    assert busybox.leftovers() == set()


READ_ONLY = """
mount -o remount,bind,ro / && mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp || exit 99
mount --bind "$1" "$1" && mount -o remount,bind,rw "$1" || exit 98
shift
exec "$@"
"""
