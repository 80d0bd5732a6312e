"""The objects of the console in an installation: none by default, no rights, restricted pods."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from automation.install.console import CONSOLE
from automation.install.objects import documents
from automation.install.options import InstallOptions
from kubeapi.json_types import Json

ON = InstallOptions(console=True)


def of_console(options: InstallOptions) -> dict[str, Json]:
    """The console's objects by kind."""
    return {d["kind"]: d for d in documents(options) if d["metadata"]["name"] == CONSOLE}


def test_by_default_there_is_no_console() -> None:
    assert of_console(InstallOptions()) == {}


def test_the_console_has_no_rights() -> None:
    everything = documents(ON)
    subjects = [each["name"] for d in everything for each in d.get("subjects") or ()]
    assert subjects and CONSOLE not in subjects
    found = of_console(ON)
    assert set(found) == {"ServiceAccount", "Service", "NetworkPolicy", "Deployment"}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert found["ServiceAccount"]["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False
    assert [list(volume)[1] for volume in spec["volumes"]] == ["secret", "configMap"]
    assert [volume["secret"]["secretName"] for volume in spec["volumes"][:1]] == ["herdsman-console-tls"]


def test_the_pod_is_restricted() -> None:
    spec = of_console(ON)["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert not any("host" in argument for argument in container["args"])


def test_with_a_name_the_console_answers_for_no_other_one() -> None:
    options = InstallOptions(console=True, console_host="console.example.org", console_ingress_class="nginx")
    found = of_console(options)
    [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "--host=$(CONSOLE_HOST)" in container["args"]
    assert {"name": "CONSOLE_HOST", "value": "console.example.org"} in container["env"]
    assert found["Ingress"]["spec"]["rules"][0]["host"] == "console.example.org"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"console_ingress_class": "nginx"}, "console_host"),
        ({"console_tls_secret": ""}, "is empty"),
        ({"console_service_type": "ExternalName"}, "console_service_type"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: Json, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        InstallOptions(console=True, **given)
