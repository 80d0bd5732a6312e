"""The operator in a pod, put in by Helm with the chart of this checkout: it leads, makes what serves, and goes."""

from __future__ import annotations

import pytest

from kubeapi import kinds
from tests.support import node as real
from tests.support.controlplane import Api
from tests.support.loop import deployed, find, model, service
from tests.support.model_server import File, FileServer
from tests.support.operator_pods import METRICS_SECRET, METRICS_TOKEN, NAMESPACE, OperatorPods
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def operator(operator_pods: OperatorPods) -> OperatorPods:
    """The operator of the chart, leading, with a token for its metrics."""
    operator_pods.make_secret(METRICS_SECRET, token=METRICS_TOKEN)
    operator_pods.helm_install(metricsSecret=METRICS_SECRET)
    operator_pods.await_leading()
    return operator_pods


def test_the_chart_installs_an_operator_that_leads_and_tells_its_metrics(operator: OperatorPods) -> None:
    pod = operator.await_leading()
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0, operator.log(pod, previous=True)
    address = real.cluster_address(operator.client, operator.node, NAMESPACE, "herdsman")
    assert real.ask(address, "/metrics").status in (401, 403)
    scraped = real.ask(address, "/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
    assert scraped.status == 200 and "herdsman_" in scraped.body


def test_what_serves_outlives_the_release(
    operator: OperatorPods, node_api: Api, files: FileServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights = write_tiny_model(tmp_path_factory.mktemp("weights") / "tiny.gguf").read_bytes()
    with node_api.namespace("chart") as place:
        model(operator.client, place, source=files.serve("/chart.gguf", File(weights)))
        service(operator.client, place, image=LLAMA_SERVER_IMAGE, contextSize=512)
        deployed(operator.client, place)
        operator.helm("uninstall", "herdsman")
        operator.await_gone()
        assert find(operator.client, kinds.DEPLOYMENTS, place, "svc") is not None
        assert find(operator.client, kinds.INFERENCE_SERVICES, place, "svc") is not None
        assert find(operator.client, kinds.CLAIMS, NAMESPACE, "herdsman-state") is not None
