"""The operator in a pod, put in by `herdsman install`: it leads, serves, and needs no more than its roles."""

from __future__ import annotations

from tests.support.operator_pods import METRICS_TOKEN, OperatorPods


def test_the_pod_leads_as_the_image_and_the_roles_say(operator: OperatorPods) -> None:
    pod = operator.await_leading()
    [container] = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0, operator.log(pod, previous=True)
    process = operator.process(pod)
    assert set(process.uids()) == {10001} and set(process.gids()) == {10001}


def test_metrics_need_the_token(operator: OperatorPods) -> None:
    pod = operator.await_leading()
    assert operator.ask(pod, "/metrics").status == 401
    assert operator.ask(pod, "/metrics", token="wrong").status == 401
    scraped = operator.ask(pod, "/metrics", token=METRICS_TOKEN)
    assert scraped.status == 200 and "herdsman_" in scraped.body
