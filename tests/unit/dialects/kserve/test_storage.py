"""How models and adapters get into pods: by address, with credentials, from caches, and with the user's settings."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.parse.source import read_address, source_of
from program.dialects.kserve.parse.store_secrets import store_secret as kept_of_secret
from tests.unit.dialects.kserve.combining import service, settings_map
from tests.unit.dialects.kserve.parsing import account, annotated, made, mounted, named, parsed, pod, serving, variables

INIT = "storage-initializer"


def model(uri: str, *adapters: tuple[str, str], **more: Any) -> Json:
    listed = [{"name": name, "uri": address} for name, address in adapters]
    return {"model": {"uri": uri, **({"lora": {"adapters": listed}} if listed else {}), **more}}


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("gs://bucket/m", "scheme"),
        ("https://example.com/m", "scheme"),
        ("oci+modelcar://registry.example/m:1", "scheme"),
        ("acme/tiny-1b", "address of a model"),
        ("hf://acme", "hf://org/repo"),
        ("hf://acme/tiny 1b", "address of a model"),
        ("pvc://claim/../other", "leaves"),
        ("s3://", "address of a model"),
        ("s3:///key", "no bucket"),
        ("s3://key:secret@bucket/m", "user or a password"),
        ("s3://bucket\\@other/m", "backslash"),
        ("s3://bucket:0/m", "port"),
        ("oci://registry.example\\@other/m:1", "backslash"),
        ("pvc:///path", "claim"),
        ("pvc://My_Claim/path", "claim"),
    ],
)
def test_an_address_that_no_pod_can_fetch_is_refused_where_it_stands(uri: str, why: str) -> None:
    with pytest.raises(SpecInvalid, match=why) as refused:
        read_address(uri, field="spec.model.uri")
    assert refused.value.field == "spec.model.uri"


@pytest.mark.parametrize(
    ("uri", "kind", "facts"),
    [
        ("hf://acme/tiny", "hf", {"repository": "acme/tiny", "revision": ""}),
        ("hf://acme/tiny:v1.2", "hf", {"repository": "acme/tiny", "revision": "v1.2"}),
        ("s3://bucket/a/b", "s3", {"bucket": "bucket", "path": "a/b"}),
        ("pvc://claim/a/b/", "pvc", {"claim": "claim", "path": "a/b"}),
        ("pvc://claim", "pvc", {"claim": "claim", "path": ""}),
        ("oci://registry.example/m:1", "other", {}),
    ],
)
def test_a_source_is_told_in_the_words_of_every_dialect(uri: str, kind: str, facts: dict[str, str]) -> None:
    source = source_of(read_address(uri, field="x"))
    assert (source.kind, source.address) == (kind, uri)
    assert {name: getattr(source, name) for name in facts} == facts


def test_models_on_a_claim_need_no_init_container() -> None:
    spec, main = serving(service(model("pvc://models/llama/8b")))
    assert "initContainers" not in spec
    assert mounted(main)["/mnt/models"] == {
        "name": "kserve-pvc-source",
        "mountPath": "/mnt/models",
        "readOnly": True,
        "subPath": "llama/8b",
    }


def test_the_user_decides_about_image_resources_and_variables_of_the_init_container_and_no_more() -> None:
    own = {
        "name": INIT,
        "image": "registry.example/init:2",
        "command": ["x"],
        "args": ["y"],
        "env": [{"name": "HF_HUB_ENABLE_HF_TRANSFER", "value": "0"}],
        "resources": {"limits": {"memory": "4Gi"}},
    }
    template = {"initContainers": [own, {"name": "after", "image": "i"}], "containers": [{"name": "main"}]}
    spec, _ = serving(service({"template": template}))
    assert [c["name"] for c in spec["initContainers"]] == [INIT, "after"]
    init = spec["initContainers"][0]
    assert init["args"] == ["hf://acme/tiny-1b", "/mnt/models"]
    assert (init["image"], "command" in init) == ("registry.example/init:2", False)
    assert init["resources"]["limits"] == {"cpu": "1", "memory": "4Gi"}
    assert variables(init)["HF_HUB_ENABLE_HF_TRANSFER"]["value"] == "0"


def test_nothing_is_mounted_where_the_service_fetches_its_model_itself() -> None:
    spec, main = serving(service({"storageInitializer": {"enabled": False}, **model("gs://bucket/m")}))
    assert "initContainers" not in spec
    assert not {"/mnt/models", "/mnt"} & set(mounted(main))


ADAPTERS = [
    # Model and adapters share one volume at their common parent folder, since nothing else is mounted inside it.
    ("hf://o/m", [("l", "hf://o/l")], {"/mnt": None}),
    ("hf://o/m", [("l", "pvc://c/l")], {"/mnt/models": None, "/mnt/lora/l": "l"}),
    ("pvc://c/m", [("l", "hf://o/l")], {"/mnt/models": "m", "/mnt/lora/l": "lora/l"}),
    (
        "hf://o/m",
        [("a", "s3://b/a"), ("l", "pvc://c/l")],
        {"/mnt/models": "models", "/mnt/lora/a": "lora/a", "/mnt/lora/l": "l"},
    ),
    ("oci://r/m:1", [("l", "hf://o/l")], {"/mnt": None, "/mnt/lora/l": "lora/l"}),
]


@pytest.mark.parametrize(("uri", "loaded", "expected"), ADAPTERS)
def test_adapters_come_beside_the_model(
    uri: str, loaded: list[tuple[str, str]], expected: dict[str, str | None]
) -> None:
    spec, main = serving(service(model(uri, *loaded)))
    weights = {path: mount.get("subPath") for path, mount in mounted(main).items() if path.startswith("/mnt")}
    assert weights == expected
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in main["volumeMounts"]} <= volumes


def inside_read_only(main: Json) -> list[tuple[str, str]]:
    """List the mounts below a read-only mount, where no container runtime can make a mount point."""
    mounts = mounted(main)
    locked = [path for path, mount in mounts.items() if mount.get("readOnly")]
    return [(outer, path) for outer in locked for path in mounts if path.startswith(f"{outer}/")]


TIER = {"kvCacheOffloading": {"cpu": "1Gi", "secondary": [{"fileSystem": {"emptyDir": {"size": "1Gi"}}}]}}
APART = {"/mnt/models": "models", "/mnt/lora/l": "lora/l"}


@pytest.mark.parametrize("uri", ["hf://o/m", "s3://b/m"])
def test_no_tier_of_the_cache_is_mounted_inside_a_read_only_folder(uri: str) -> None:
    spec, main = serving(service({**model(uri, ("l", "hf://o/l")), **TIER}))
    paths = {path: mount.get("subPath") for path, mount in mounted(main).items() if path.startswith("/mnt")}
    assert paths == {**APART, "/mnt/kv-cache-0": None}
    assert inside_read_only(main) == []
    init = named(spec["initContainers"], INIT)
    assert init is not None
    assert mounted(init)["/mnt"] == {"name": "kserve-provision-location", "mountPath": "/mnt"}


def test_a_mount_of_the_users_is_not_inside_a_read_only_folder() -> None:
    own = {"name": "scratch", "mountPath": "/mnt/scratch"}
    template = {
        "containers": [{"name": "main", "volumeMounts": [own]}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    _, main = serving(service({**model("hf://o/m", ("l", "hf://o/l")), "template": template}))
    assert inside_read_only(main) == []
    assert {p: m.get("subPath") for p, m in mounted(main).items() if p.startswith("/mnt")} == {
        **APART,
        "/mnt/scratch": None,
    }


def test_a_model_with_a_mount_of_the_users_inside_its_folder_is_writable() -> None:
    own = {"name": "scratch", "mountPath": "/mnt/models/scratch"}
    template = {
        "containers": [{"name": "main", "volumeMounts": [own]}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    for adapters in ((), (("l", "hf://o/l"),)):
        _, main = serving(service({**model("hf://o/m", *adapters), "template": template}))
        assert inside_read_only(main) == []
        assert mounted(main)["/mnt/models"]["name"] == "kserve-provision-location"


def test_a_tier_of_the_cache_stays_on_its_claim() -> None:
    tier = {"fileSystem": {"pvc": {"ref": {"name": "cache", "path": "a/../../b"}}}}
    with pytest.raises(SpecInvalid, match="leaves") as refused:
        made(service({"kvCacheOffloading": {"cpu": "1Gi", "secondary": [tier]}}))
    assert refused.value.field == "spec.kvCacheOffloading.secondary[0].fileSystem.pvc.ref.path"


def test_one_init_container_fetches_model_and_adapters() -> None:
    spec, _ = serving(service(model("hf://o/m", ("b", "s3://b/b"), ("a", "hf://o/a"))))
    init = named(spec["initContainers"], INIT)
    assert init is not None
    assert init["args"] == ["hf://o/m", "/mnt/models", "hf://o/a", "/mnt/lora/a", "s3://b/b", "/mnt/lora/b"]


def test_an_image_with_a_model_runs_beside_the_container_that_serves() -> None:
    spec, main = serving(service(model("oci://registry.example/m:1")))
    car, first = named(spec["containers"], "modelcar"), named(spec["initContainers"], "modelcar-init")
    assert car is not None and first is not None
    assert spec["shareProcessNamespace"] is True
    assert car["image"] == first["image"] == "registry.example/m:1"
    assert car["securityContext"]["runAsUser"] == main["securityContext"]["runAsUser"] == 1010
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("storage", "volume"),
    [({"ociModelMode": "native"}, "kserve-oci-source"), ({"ociModelMode": "modelcar"}, "kserve-provision-location")],
)
def test_settings_decide_how_images_are_mounted(storage: Json, volume: str) -> None:
    changed = settings_map(storageInitializer={"enableModelcar": False, **storage})
    spec, _ = serving(service(model("oci://registry.example/m:1")), changed)
    assert named(spec["volumes"], volume) is not None


def test_an_image_is_refused_where_settings_turn_sidecars_off() -> None:
    with pytest.raises(SpecInvalid, match="enableModelcar"):
        made(service(model("oci://registry.example/m:1")), settings_map(storageInitializer={"enableModelcar": False}))


def test_credentials_are_referred_to_and_never_read() -> None:
    reader = account(
        "reader",
        "reader-dockercfg-x1",
        "keys",
        metadata={
            "annotations": {
                "serving.kserve.io/s3-endpoint": "minio:9000",
                "serving.kserve.io/s3-usehttps": "0",
                "serving.kserve.io/s3-region": "eu",
            }
        },
    )
    template = {"serviceAccountName": "reader", "containers": [{"name": "main"}]}
    spec, main = serving(service({"template": template, **model("s3://bucket/m")}), reader)
    found = variables(named(spec["initContainers"], INIT) or {})
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert found[key]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": key, "optional": True}}
    told = {name: found[name]["value"] for name in ("S3_ENDPOINT", "AWS_ENDPOINT_URL", "S3_USE_HTTPS")}
    assert told == {"S3_ENDPOINT": "minio:9000", "AWS_ENDPOINT_URL": "http://minio:9000", "S3_USE_HTTPS": "0"}
    assert "AWS_ACCESS_KEY_ID" not in variables(main)


def store_secret(name: str = "keys", **annotations: str) -> Json:
    said = {f"serving.kserve.io/s3-{key}": value for key, value in annotations.items()}
    return {"kind": "Secret", "metadata": {"name": name, "annotations": said}}


def told(*objects: Json, annotations: dict[str, str] | None = None) -> dict[str, str]:
    """Return the variables with a plain value of the init container that fetches from S3."""
    template = {"serviceAccountName": "reader", "containers": [{"name": "main"}]}
    spec, _ = serving(annotated(annotations or {}, template=template, **model("s3://bucket/m")), *objects)
    found = variables(named(spec["initContainers"], INIT) or {})
    return {name: variable["value"] for name, variable in found.items() if "value" in variable}


def test_annotations_of_the_secret_say_where_the_store_is() -> None:
    secret = store_secret(
        endpoint="minio:9000", usehttps="0", region="eu", verifyssl="0", usevirtualbucket="1", useanoncredential="1"
    )
    assert told(account("reader", "keys"), secret) == {
        "S3_ENDPOINT": "minio:9000",
        "AWS_ENDPOINT_URL": "http://minio:9000",
        "S3_USE_HTTPS": "0",
        "AWS_DEFAULT_REGION": "eu",
        "S3_VERIFY_SSL": "0",
        "S3_USER_VIRTUAL_BUCKET": "1",
        "awsAnonymousCredential": "1",
    }
    assert told(account("reader", "other"), secret) == {}, "only the Secret whose keys are used"


def test_the_secret_goes_before_its_account_and_behind_the_service() -> None:
    of_account = {"serving.kserve.io/s3-endpoint": "account:9", "serving.kserve.io/s3-region": "account"}
    objects = (
        account("reader", "keys", metadata={"annotations": of_account}),
        store_secret(endpoint="secret:9", verifyssl="1"),
        store_secret("mine", region="mine"),
    )
    assert told(*objects) == {
        "S3_ENDPOINT": "secret:9",
        "AWS_ENDPOINT_URL": "https://secret:9",
        "AWS_DEFAULT_REGION": "account",
        "S3_VERIFY_SSL": "1",
    }
    assert told(*objects, annotations={"serving.kserve.io/s3-endpoint": "service:9"})["S3_ENDPOINT"] == "service:9"
    assert told(*objects, annotations={"serving.kserve.io/storageSecretName": "mine"})["AWS_DEFAULT_REGION"] == "mine"


@pytest.mark.parametrize(
    ("endpoint", "usehttps", "url", "secure"),
    [
        ("http://minio:9000", "1", "http://minio:9000", "0"),
        ("HTTPS://minio:9000", "0", "https://minio:9000", "1"),
        (" minio:9000 ", "", "https://minio:9000", None),
    ],
)
def test_an_endpoint_may_name_its_scheme(endpoint: str, usehttps: str, url: str, secure: str | None) -> None:
    found = told(account("reader", "keys"), store_secret(endpoint=endpoint, usehttps=usehttps))
    assert found["S3_ENDPOINT"] == "minio:9000"
    assert (found["AWS_ENDPOINT_URL"], found.get("S3_USE_HTTPS")) == (url, secure)


def test_of_a_secret_nothing_but_the_annotations_about_a_store_is_kept() -> None:
    last_applied = {"kubectl.kubernetes.io/last-applied-configuration": '{"stringData":{"AWS_SECRET_ACCESS_KEY":"k"}}'}
    said = {"serving.kserve.io/s3-region": "eu"}
    metadata = {"name": "keys", "namespace": "team", "uid": "u", "annotations": {**last_applied, **said}}
    assert kept_of_secret(metadata)["metadata"] == {**metadata, "annotations": said}


def test_what_is_said_of_a_store_closer_to_the_service_goes_first() -> None:
    said = "serving.kserve.io/s3-"
    settings = settings_map(
        credentials={
            "storageSecretNameAnnotation": "example.org/keys",
            "s3": {
                "s3AccessKeyIDName": "id",
                "s3Endpoint": "everywhere:9000",
                "s3Region": "eu",
                "s3UseAccelerate": "1",
                "s3CABundle": "/ca.pem",
            },
        }
    )
    default = account("default", metadata={"annotations": {f"{said}endpoint": "here:9000", f"{said}region": "us"}})
    cr = annotated({f"{said}region": "ap", "example.org/keys": "mine"}, **model("s3://bucket/m"))
    spec, _ = serving(cr, settings, default)
    found = variables(named(spec["initContainers"], INIT) or {})
    assert {name: variable["value"] for name, variable in found.items() if "value" in variable} == {
        "S3_ENDPOINT": "here:9000",
        "AWS_ENDPOINT_URL": "https://here:9000",
        "AWS_DEFAULT_REGION": "ap",
        "S3_USE_ACCELERATE": "1",
        "AWS_CA_BUNDLE": "/ca.pem",
    }
    assert found["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "id", "optional": True}
    assert found["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "AWS_SECRET_ACCESS_KEY"


def test_the_annotation_names_the_secret_and_several_secrets_are_told_of() -> None:
    default = account("default", "one", "two")
    asked = parsed(service(), default)
    assert [p.field for p in asked.unsupported] == ["spec.template.serviceAccountName"]
    assert "one, two" in asked.unsupported[0].message
    cr = annotated({"serving.kserve.io/secretName": "hub"})
    answered = parsed(cr, default)
    assert answered.unsupported == ()
    assert answered.desired.workloads is not None
    init = named(pod(answered.desired.workloads.main)["initContainers"], INIT) or {}
    assert variables(init)["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "hub"


def test_a_model_in_a_cache_on_the_nodes_is_mounted_from_its_claim() -> None:
    prefix = "internal.serving.kserve.io/localmodel"
    cr = annotated({f"{prefix}-sourceuri": "hf://acme", f"{prefix}-pvc-name": "cache-gpu"}, **model("hf://acme/tiny"))
    _, main = serving(cr)
    folder = hashlib.sha256(b"hf://acme").hexdigest()[:16]
    assert mounted(main)["/mnt/models"]["subPath"] == f"models/{folder}/tiny"


def test_a_cache_of_another_model_changes_nothing() -> None:
    prefix = "internal.serving.kserve.io/localmodel"
    cr = annotated({f"{prefix}-sourceuri": "hf://acme/ti", f"{prefix}-pvc-name": "c"}, **model("hf://acme/tiny"))
    spec, _ = serving(cr)
    assert named(spec["initContainers"], INIT) is not None


def test_certificates_of_stores_are_mounted_where_settings_name_them() -> None:
    settings = settings_map(storageInitializer={"caBundleConfigMapName": "bundle"})
    spec, _ = serving(service(), settings)
    init = named(spec["initContainers"], INIT) or {}
    assert variables(init)["CA_BUNDLE_CONFIGMAP_NAME"]["value"] == "global-ca-bundle"
    assert "/etc/ssl/custom-certs" in mounted(init)
    volume = named(spec["volumes"], "cabundle-cert") or {}
    assert volume["configMap"] == {"name": "global-ca-bundle"}, "KServe's copy of it, in each namespace"
    [missing] = parsed(service(), settings).unsupported
    assert "kserve/bundle" in missing.message
    copied = {"kind": "ConfigMap", "metadata": {"name": "global-ca-bundle", "namespace": "team"}}
    assert parsed(service(), settings, copied).unsupported == ()
    beside = service()
    beside["metadata"]["namespace"] = "kserve"
    spec, _ = serving(beside, settings)
    assert (named(spec["volumes"], "cabundle-cert") or {})["configMap"] == {"name": "bundle"}


def test_certificates_of_a_store_of_ones_own_are_mounted_where_its_file_is_said_to_be() -> None:
    said = {"serving.kserve.io/s3-cabundle-configmap": "mine", "serving.kserve.io/s3-cabundle": "/certs/minio/ca.pem"}
    settings = settings_map(storageInitializer={"caBundleConfigMapName": "bundle"})
    spec, _ = serving(annotated(said, **model("s3://bucket/m")), settings)
    assert (named(spec["volumes"], "cabundle-cert") or {})["configMap"] == {"name": "mine"}
    init = named(spec["initContainers"], INIT) or {}
    assert mounted(init)["/certs/minio"]["name"] == "cabundle-cert"
    assert variables(init)["AWS_CA_BUNDLE"]["value"] == "/certs/minio/ca.pem"
    spec, _ = serving(annotated(said, **model("hf://acme/tiny")))
    assert named(spec["volumes"], "cabundle-cert") is None, "the settings of S3 concern no other store"


def test_a_confidential_model_is_told_to_who_fetches_it() -> None:
    cr = service(model("hf://o/m", confidential={"enabled": True, "resourceId": "kbs:///default/key/1"}))
    spec, _ = serving(cr)
    found = variables(named(spec["initContainers"], INIT) or {})
    assert found["CONFIDENTIAL_RESOURCE_ID"]["value"] == "kbs:///default/key/1"


def test_an_image_may_be_mounted_as_it_is() -> None:
    spec, main = serving(service(model("oci+native://registry.example/m:1")))
    assert named(spec["volumes"], "kserve-oci-source") == {
        "name": "kserve-oci-source",
        "image": {"reference": "registry.example/m:1"},
    }
    assert mounted(main)["/mnt/models"] == {
        "name": "kserve-oci-source",
        "mountPath": "/mnt/models",
        "readOnly": True,
        "subPath": "models",
    }
    assert "initContainers" not in spec
