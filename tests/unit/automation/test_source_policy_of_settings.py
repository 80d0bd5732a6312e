"""The settings decide which sources the loop may inspect."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from automation.settings import Settings
from automation.startup.options import source_policy


def test_a_hub_that_the_operator_names_may_be_a_private_host() -> None:
    policy = source_policy(Settings(hub_url="http://hub.in.house:8080/mirror/"))
    assert policy.allows("hub.in.house", ip_address("10.1.2.3"))
    assert not policy.allows("other.in.house", ip_address("10.1.2.3"))
    public = source_policy(Settings(allowed_remote_hosts=("minio",)))
    assert public.allowed_remote_hosts == ("minio",)


def test_certificates_of_the_operator_s_are_trusted() -> None:
    assert source_policy(Settings(ca_cert_file=Path("/etc/ca.pem"))).ca_file == "/etc/ca.pem"
    assert source_policy(Settings()).ca_file is None
