"""KServe's ConfigMap: its settings, their defaults, and the messages for invalid values."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from program.desired.errors import SpecInvalid
from program.dialects.kserve.settings import CredentialSettings, PrometheusSettings, Settings, StorageSettings
from program.dialects.kserve.settings import settings as read
from tests.unit.dialects.kserve.combining import cluster, settings_map


def test_without_a_config_map_the_defaults_hold() -> None:
    assert read(cluster()) == Settings()
    assert read(cluster(settings_map())) == Settings()
    assert read(cluster({**settings_map(), "data": None})) == Settings()
    assert read(cluster(settings_map(ingress="", deploy={"x": 1}))) == Settings()


def test_every_key_is_read() -> None:
    look = cluster(
        settings_map(
            ingress={
                "kserveIngressGateway": "edge/gate",
                "urlScheme": "https",
                "enableLLMInferenceServiceTLS": True,
                "modelBasedRoutingHeaderName": "X-Model",
                "modelBasedRoutingMode": "forced",
                "ingressDomain": "ignored.example",
            },
            storageInitializer={
                "image": "registry.example/fetch:2",
                "cpuRequest": "200m",
                "cpuLimit": "2",
                "memoryRequest": "1Gi",
                "memoryLimit": "4Gi",
                "caBundleConfigMapName": "ca",
                "caBundleVolumeMountPath": "/ca",
                "enableModelcar": False,
                "cpuModelcar": "20m",
                "memoryModelcar": "30Mi",
                "uidModelcar": 0,
                "ociModelMode": "native",
            },
            **{
                "autoscaling-wva-controller-config": {
                    "prometheus": {
                        "url": "http://prom:9090",
                        "tlsInsecureSkipVerify": True,
                        "authModes": "bearer",
                        "triggerAuthName": "auth",
                        "triggerAuthKind": "ClusterTriggerAuthentication",
                    }
                }
            },
            scheduler={"expirationAnnotations": ["a/b"]},
            herdsman={"configPrefix": "v2-kserve-", "wildcardHostname": "models"},
            credentials={
                "storageSecretNameAnnotation": "example.org/keys",
                "gcs": {"gcsCredentialFileName": "ignored"},
                "s3": {
                    "s3AccessKeyIDName": "id",
                    "s3SecretAccessKeyName": "key",
                    "s3Endpoint": "minio:9000",
                    "s3UseHttps": "0",
                    "s3Region": "eu",
                    "s3VerifySSL": "",
                },
            },
        )
    )
    assert read(look) == Settings(
        gateway_namespace="edge",
        gateway_name="gate",
        tls=True,
        model_header="X-Model",
        header_routing="forced",
        storage=StorageSettings(
            image="registry.example/fetch:2",
            cpu_request="200m",
            cpu_limit="2",
            memory_request="1Gi",
            memory_limit="4Gi",
            ca_bundle_config_map="ca",
            ca_bundle_mount_path="/ca",
            modelcar=False,
            modelcar_cpu="20m",
            modelcar_memory="30Mi",
            modelcar_uid=0,
            oci_model_mode="native",
        ),
        prometheus=PrometheusSettings(
            url="http://prom:9090",
            tls_insecure_skip_verify=True,
            auth_modes="bearer",
            trigger_auth_name="auth",
            trigger_auth_kind="ClusterTriggerAuthentication",
        ),
        config_prefix="v2-kserve-",
        wildcard_label="models",
        expiration_annotations=("a/b",),
        credentials=CredentialSettings(
            secret_annotation="example.org/keys",
            access_key="id",
            secret_key="key",
            s3={"endpoint": "minio:9000", "usehttps": "0", "region": "eu"},
        ),
    )


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"ingress": "{"}, "ingress"),
        ({"ingress": "[]"}, "ingress"),
        ({"ingress": "[" * 5000}, "ingress"),
        ({"ingress": " " * 200_000 + "{}"}, "ingress"),
        ({"ingress": {"kserveIngressGateway": "gate"}}, "ingress.kserveIngressGateway"),
        ({"ingress": {"kserveIngressGateway": "a/b/c"}}, "ingress.kserveIngressGateway"),
        ({"ingress": {"kserveIngressGateway": 1}}, "ingress.kserveIngressGateway"),
        ({"ingress": {"urlScheme": "ftp"}}, None),
        ({"ingress": {"enableLLMInferenceServiceTLS": "true"}}, "ingress.enableLLMInferenceServiceTLS"),
        ({"ingress": {"modelBasedRoutingMode": "maybe"}}, "ingress.modelBasedRoutingMode"),
        ({"storageInitializer": {"memoryLimit": "lots"}}, "storageInitializer.memoryLimit"),
        ({"storageInitializer": {"uidModelcar": -1}}, "storageInitializer.uidModelcar"),
        ({"storageInitializer": {"uidModelcar": True}}, "storageInitializer.uidModelcar"),
        ({"autoscaling-wva-controller-config": {"prometheus": []}}, "autoscaling-wva-controller-config.prometheus"),
        ({"scheduler": {"expirationAnnotations": [1]}}, "scheduler.expirationAnnotations"),
        ({"credentials": {"s3": "minio"}}, "credentials.s3"),
        ({"credentials": {"s3": {"s3UseHttps": False}}}, "credentials.s3.s3UseHttps"),
    ],
)
def test_nonsense_names_its_key(keys: dict[str, Any], field: str | None) -> None:
    look = cluster(settings_map(**keys))
    if field is None:
        assert read(look) == Settings()
        return
    with pytest.raises(SpecInvalid) as raised:
        read(look)
    assert raised.value.field == f"ConfigMap kserve/inferenceservice-config {field}"
    assert raised.value.reason == "CombineBaseError"


JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["kserveIngressGateway", "modelBasedRoutingMode", "enableLLMInferenceServiceTLS", "image", "uidModelcar"]
)


@given(st.dictionaries(KEYS, JSON), st.sampled_from(["ingress", "storageInitializer", "scheduler"]))
@settings(max_examples=100, deadline=None)
def test_whatever_it_holds_nothing_else_happens(value: dict[str, Any], key: str) -> None:
    look = cluster(settings_map(**{key: json.dumps(value)}))
    with contextlib.suppress(SpecInvalid):
        assert isinstance(read(look), Settings)
