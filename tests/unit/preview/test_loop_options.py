"""The render options of a preview, and its message if it cannot read them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from automation.preview.loop_options import options_of_loop
from components.render import RenderOptions
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound


class Cluster:
    """Answers each request for an object with one object or one error."""

    def __init__(self, answer: dict[str, Any] | ApiError) -> None:
        self._answer = answer

    def get(self, kind: object, namespace: str, name: str) -> dict[str, Any]:
        if isinstance(self._answer, ApiError):
            raise self._answer
        return self._answer


def asked(answer: dict[str, Any] | ApiError) -> tuple[RenderOptions, list[str]]:
    notes: list[str] = []
    return options_of_loop(cast(KubeClient, Cluster(answer)), {}, on_note=notes.append), notes


def test_the_settings_of_the_loops_deployment_count() -> None:
    env = [{"name": "HERDSMAN_MODEL_CACHE_SIZE", "value": "7Gi"}]
    options, notes = asked({"spec": {"template": {"spec": {"containers": [{"env": env}]}}}})
    assert options.cache_size == "7Gi" and not notes


def test_the_namespace_of_the_loop_is_part_of_the_name_of_its_service() -> None:
    env = [{"name": "HERDSMAN_EXTERNAL_METRICS_SERVICE", "value": "$(POD_NAMESPACE)/metrics"}]
    options, _ = asked({"spec": {"template": {"spec": {"containers": [{"env": env}]}}}})
    assert options.metrics_service == "herdsman-system/metrics"


@pytest.mark.parametrize("gone", [NotFound(404, "NotFound", "no Deployment")])
def test_without_an_installation_the_defaults_count(gone: ApiError) -> None:
    assert asked(gone) == (RenderOptions(), [])


def test_a_user_who_may_not_read_the_settings_is_told_that_the_defaults_are_used() -> None:
    options, [note] = asked(Forbidden(403, "Forbidden", "may not get deployments"))
    assert options == RenderOptions()
    assert "Role `herdsman-preview` of namespace herdsman-system" in note
