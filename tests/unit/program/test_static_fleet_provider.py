"""The provider of a cluster of a static fleet."""

from __future__ import annotations

import pulumi
import pytest

from components.kubernetes_object import cluster_provider
from tests.support import registrations


@pytest.mark.parametrize(
    ("context", "kubeconfig"), [("", ""), ("main", ""), ("", "clusters/one"), ("main", "clusters/one")]
)
def test_the_provider_of_the_sdk_is_registered_with_what_the_config_says_and_nothing_else(
    context: str, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state must not contain $KUBECONFIG of the machine, since the next run may be on another machine."""
    monkeypatch.setenv("KUBECONFIG", "/home/ann/.kube/config:/secret")
    said = {key: value for key, value in {"context": context, "kubeconfig": kubeconfig}.items() if value}

    async def by_sdk() -> None:
        cluster_provider("one", context=context, kubeconfig=kubeconfig, version="4.34.2-herdsman")

    async def plain() -> None:
        options = pulumi.ResourceOptions(version="4.34.2-herdsman")
        pulumi.ProviderResource("kubernetes", "one", said, options)

    assert registrations.of(by_sdk) == registrations.of(plain)
    assert registrations.of(by_sdk)["one"].get("object", {}) == said
