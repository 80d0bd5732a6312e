"""The address and the binaries of a host."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from agent.server.host_facts import Binaries, best_address, measure


@pytest.mark.parametrize(
    ("addresses", "best"),
    [
        (["127.0.0.1", "192.168.1.5"], "192.168.1.5"),
        (["192.168.1.5", "100.101.102.103"], "100.101.102.103"),
        (["172.17.0.1", "10.0.0.4"], "10.0.0.4"),
        (["172.17.0.1"], "172.17.0.1"),
        (["fe80::1%eth0", "fd00::2", "10.0.0.4"], "10.0.0.4"),
        (["::1", "fd00::2"], "fd00::2"),
        (["169.254.3.4", "127.0.0.1", "::1"], None),
        ([], None),
    ],
)
def test_the_address_that_others_reach_is_chosen(addresses: list[str], best: str | None) -> None:
    assert best_address(addresses) == best


def test_a_located_binary_comes_before_path_and_says_its_version(tmp_path: Path) -> None:
    binary = tmp_path / "my-llama"
    binary.write_text("#!/bin/sh\necho 'version: 4711 (abc)' >&2\n")
    binary.chmod(0o755)
    binaries = Binaries(lambda name: binary if name == "llama-server" else None)
    assert binaries.find("llama-server") == str(binary)
    assert binaries.versions() == {"llama-server": "4711"}
    assert binaries.find("sh") is not None
    assert binaries.find(str(binary)) == str(binary)
    assert binaries.find("no-such-binary-anywhere") is None
    facts = measure(host="mac", address="10.0.0.1", binaries=binaries, labels={"a": "b"})
    assert facts.runtimes == {"llama-server": "4711"}
    assert facts.memory_bytes == psutil.virtual_memory().total
