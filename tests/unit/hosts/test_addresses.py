"""The addresses of hosts in Services, and the messages for refused ones."""

from __future__ import annotations

import ipaddress

import pytest

from automation.hosts.addresses import ClusterAddresses, HostAddress, host_address, published_address
from automation.hosts.registration import Refused

CLUSTER = ClusterAddresses(
    api_servers=frozenset({("10.0.0.5", 6443), ("10.96.0.1", 443)}),
    pod_ranges=(ipaddress.ip_network("10.244.0.0/16"), ipaddress.ip_network("fd00:10:244::/56")),
)


def published(pinned: str = "", named: str = "", *, port: int | None = 18001, by_ssh: bool = False) -> str:
    pins = {"10.0.0.9": ("other",)}
    return published_address("mac", HostAddress(pinned, named, by_ssh), port, pinned_by=pins, cluster=CLUSTER)


def test_the_owners_word_counts_before_the_hosts_own() -> None:
    assert published(named="10.0.0.7") == "10.0.0.7"
    assert published("10.0.0.8", "10.0.0.7") == "10.0.0.8"
    assert published("10.244.1.1", "") == "10.244.1.1", "who owns the host may know better"
    assert published("mac.example", "10.0.0.7", by_ssh=True) == "10.0.0.7"
    assert published(named="fd00::7") == "fd00::7"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("224.0.0.1", "multicast"),
        ("0.0.0.0", "no address"),
        ("240.0.0.1", "reserved"),
        ("::ffff:10.244.1.1", "IPv4 address in IPv6"),
        ("10.244.7.7", "address of pods"),
        ("fd00:10:244::7", "address of pods"),
        ("10.0.0.9", "spec.address of Host `other`"),
        ("mac.example", "not an IP address"),
        ("", "not an IP address"),
    ],
)
def test_an_address_that_is_no_hosts_is_refused_with_the_field(address: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        published(named=address)
    assert "status.address" in str(refused.value)
    assert refused.value.reason == "AddressRefused"


def test_the_api_server_and_the_ports_of_a_machines_own_services_are_refused() -> None:
    with pytest.raises(Refused, match="is the API server"):
        published(named="10.0.0.5", port=6443)
    assert published(named="10.0.0.5", port=18001) == "10.0.0.5", "a host may be the machine of the API server"
    with pytest.raises(Refused, match="port 22"):
        published("10.0.0.8", port=22)


def test_what_the_owner_says_must_be_an_address_that_others_reach() -> None:
    with pytest.raises(Refused, match=r"spec\.address 127\.0\.0\.1 is loopback"):
        published("127.0.0.1", "10.0.0.7")
    with pytest.raises(Refused, match=r"spec\.address `mac\.example`"):
        published("mac.example", "10.0.0.7")


def test_a_host_that_is_not_there_has_no_address() -> None:
    with pytest.raises(Refused, match="there is no Host `mac`"):
        published_address("mac", None, 18001, pinned_by={}, cluster=CLUSTER)
    read = host_address({"spec": {"transport": "ssh", "address": "a"}, "status": {"address": "b"}})
    assert read == HostAddress("a", "b", by_ssh=True)
