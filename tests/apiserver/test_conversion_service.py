"""A conversion webhook behind a Service: the API server accepts the address that the loop writes into the CRDs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import structlog.testing

from automation.webhook.registration import CRDS, Endpoint, register
from automation.webhook.webhook import ConversionServer
from kubeapi.client import KubeClient
from program.dialects.crds.definitions import crd_documents
from tests.support import controlplane
from tests.support.conversions import clients_of
from tests.support.definitions import CRDS as PATH
from tests.support.definitions import established

SERVICE = ("herdsman-system", "herdsman", 443)


def test_the_api_server_takes_the_address_of_a_service(api: controlplane.Api, kubeconfig: Path) -> None:
    """For a Service, the API server accepts only DNS names between the slashes of the path. A URL has no such rule."""
    wanted = dict(zip(("namespace", "name", "port"), SERVICE, strict=True))
    with established(api, crd_documents("kserve")):
        client = KubeClient.from_kubeconfig(str(kubeconfig))
        server = ConversionServer(client, port=0, service=SERVICE, check_every_s=0.2)
        server.start()
        try:
            controlplane.eventually(
                lambda: all(wanted.items() <= each.get("service", {}).items() for each in clients_of(api)),
                what="the CRDs to be told of the Service",
            )
        finally:
            server.close()
            client.close()
            for name in CRDS:
                body = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
                api.request("PATCH", f"{PATH}/{name}", body, content_type="application/merge-patch+json")


def test_an_address_that_the_api_server_refuses_is_a_warning(api: controlplane.Api, kubeconfig: Path) -> None:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    endpoint = Endpoint(path="/convert/Not_A_Name", authority=b"", service=SERVICE)
    with established(api, crd_documents("kserve")), structlog.testing.capture_logs() as logs:
        assert not register(client, endpoint, peers_too=False)
        assert register(client, dataclasses.replace(endpoint, url="https://127.0.0.1:1", service=None), peers_too=False)
        for name in CRDS:
            body = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
            api.request("PATCH", f"{PATH}/{name}", body, content_type="application/merge-patch+json")
    client.close()
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert {line["crd"] for line in warnings} == set(CRDS)
    assert all("path" in line["why"] for line in warnings)
