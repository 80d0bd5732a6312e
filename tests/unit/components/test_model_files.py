"""Weights of every kind of source: the downloader's environment, the paths of files, the claim."""

from __future__ import annotations

from typing import Any

import pytest

from components.options import RenderOptions
from components.render import render
from program.desired.adapter import AdapterFile
from program.desired.engines import SecretKey, Sglang, SpeculativeDecoding, TensorRtLlm, Tgi, Vllm
from program.desired.model import DesiredModel, ModelFormat, ModelSource, SourceKind
from program.desired.service import ModelStorage, PodSettings
from tests.support.builders import KEY, claim_model, file_model, http_model, repository_model, service
from tests.unit.components.views import container, init, objects, plain_env, pod

DRAFT_KEY = "0123456789abcdef"
MIRROR = RenderOptions(hub_url="https://hub.example:8443")
SET = {"cache_key": KEY, "file_name": "a/m.gguf", "files": ("a/m.gguf", "b.gguf"), "mmproj": "p.gguf"}


def s3_model(path: str, **fields: Any) -> DesiredModel:
    source = ModelSource(kind=SourceKind.S3, address=f"s3://bucket/{path}", bucket="bucket", path=path)
    return http_model(source=source, **fields)


def draft_model(**fields: Any) -> DesiredModel:
    return http_model(**{"name": "small", "cache_key": DRAFT_KEY, "file_name": "Small.gguf", **fields})


def env(desired: Any, options: RenderOptions = RenderOptions(), name: str = "model-downloader") -> dict[str, str]:
    return plain_env(init(desired, options)[name])


def test_a_set_of_files_lies_below_one_directory() -> None:
    desired = service(model=repository_model(**SET))
    assert env(desired) == {
        "MODEL_SOURCE": "https://huggingface.co/org/repo/resolve/main/",
        "CACHE_DIR": f"/models/{KEY}",
        "MODEL_PATH": f"/models/{KEY}/a/m.gguf",
        "MODEL_FILES": "a/m.gguf\nb.gguf\np.gguf",
    }
    assert f"/models/{KEY}/a/m.gguf" in container(desired)["args"]
    assert list(init(desired)) == ["model-cache-prep", "model-downloader"]


def test_a_mirror_of_the_hub_is_used_and_named() -> None:
    assert env(service(model=repository_model("v1", **SET)), MIRROR)["MODEL_SOURCE"] == (
        "https://hub.example:8443/org/repo/resolve/v1/"
    )
    assert env(service(), MIRROR)["HUB_HOST"] == "hub.example:8443"
    assert env(service(), MIRROR)["MODEL_SOURCE"] == "https://example.com/model.gguf"
    assert "HUB_HOST" not in env(service())


def test_an_object_of_a_bucket_is_named_apart_from_it() -> None:
    told = env(service(model=s3_model("dir/m.gguf")))
    assert (told["S3_BUCKET"], told["S3_KEY"]) == ("bucket", "dir/m.gguf")
    assert "S3_PREFIX" not in told
    told = env(service(model=s3_model("dir", **SET)))
    assert (told["S3_BUCKET"], told["S3_PREFIX"]) == ("bucket", "dir")
    assert "S3_KEY" not in told
    assert told["MODEL_FILES"].splitlines() == ["a/m.gguf", "b.gguf", "p.gguf"]


def test_credentials_reach_the_downloader_alone_and_by_reference() -> None:
    desired = service(model=s3_model("m.gguf", source_secret="s3-keys"))
    assert init(desired)["model-downloader"]["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    assert "envFrom" not in container(desired)
    assert "envFrom" not in init(desired)["model-cache-prep"]
    assert "envFrom" not in init(service())["model-downloader"]


@pytest.mark.parametrize("engine", [Vllm, Sglang])
def test_the_engines_token_opens_gated_repositories(engine: Any) -> None:
    token = SecretKey(name="hf", key="token")
    wanted = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}

    def told(model: DesiredModel) -> list[dict[str, Any]]:
        downloader = init(service(engine=engine(hf_token=token), model=model))["model-downloader"]
        return list(downloader["env"])

    assert wanted in told(repository_model(**SET))
    # The token is not passed if the Model has a Secret for its source, or if the source is another URL.
    assert wanted not in told(repository_model(**SET, source_secret="mine"))
    assert wanted not in told(http_model())


def test_a_source_is_looked_at_again_only_when_asked_for() -> None:
    assert env(service(model=http_model(refresh="OnChange")))["REFRESH_POLICY"] == "OnChange"
    assert "REFRESH_POLICY" not in env(service())


# --- Storage ----------------------------------------------------------------------------------------------------------


def test_a_claim_of_the_users_is_mounted_and_never_made() -> None:
    desired = service(storage=ModelStorage(claim_name="mine"))
    assert render(desired, RenderOptions()).shared == ()
    assert env(desired)["CACHE_DIR"] == f"/models/{KEY}"


def test_a_claim_for_each_service_goes_with_it() -> None:
    options = RenderOptions(claim_mode="perService")
    claim = objects(service(), options)["claim"]
    assert claim["metadata"]["name"] == "svc-model-cache"
    assert claim["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert pod(service(), options)["volumes"][0]["persistentVolumeClaim"] == {"claimName": "svc-model-cache"}
    assert render(service(), options.model_copy(update={"claim_exists": True})).shared == ()


def test_ephemeral_weights_go_with_the_pod() -> None:
    desired = service(
        storage=ModelStorage(persistence="Ephemeral"), pod=PodSettings(ephemeral_storage="9Gi"), model=http_model()
    )
    assert render(desired, RenderOptions()).shared == ()
    assert pod(desired)["volumes"] == [{"name": "model-storage", "emptyDir": {"sizeLimit": "9Gi"}}]
    assert env(desired)["MODEL_PATH"] == "/models/ns-base.gguf"
    assert list(init(desired)) == ["model-downloader"]
    several = desired.model_copy(update={"model": repository_model(**SET)})
    assert env(several)["CACHE_DIR"] == "/models/ns-base"
    assert env(several)["MODEL_PATH"] == "/models/ns-base/a/m.gguf"
    without_a_key = service(model=http_model(cache_key=""), pod=PodSettings(ephemeral_storage="9Gi"))
    assert pod(without_a_key)["volumes"] == [{"name": "model-storage", "emptyDir": {}}]


# --- Draft models -----------------------------------------------------------------------------------------------------


def drafting(**fields: Any) -> Any:
    engine = service().engine.model_copy(update={"speculative": SpeculativeDecoding(type="draft-simple")})
    return service(**{"engine": engine, "draft": draft_model(), **fields})


def test_a_draft_shares_the_cache_with_its_model() -> None:
    desired = drafting()
    assert list(init(desired)) == ["model-cache-prep", "model-downloader", "draft-model-downloader"]
    assert env(desired, name="draft-model-downloader")["MODEL_PATH"] == f"/models/{DRAFT_KEY}/Small.gguf"
    assert [one["name"] for one in pod(desired)["volumes"]] == ["model-cache"]
    assert len(container(desired)["volumeMounts"]) == 1
    args = container(desired)["args"]
    assert args[args.index("-md") + 1] == f"/models/{DRAFT_KEY}/Small.gguf"


def test_a_draft_in_the_cache_of_a_model_on_a_claim_has_a_mount_of_its_own() -> None:
    desired = drafting(model=claim_model())
    assert list(init(desired)) == ["draft-cache-prep", "draft-model-downloader"]
    assert init(desired)["draft-cache-prep"]["command"][-1] == "chown 0:102 /draft && chmod g+rwX /draft"
    assert [one["name"] for one in pod(desired)["volumes"]] == ["model-source", "draft-0"]
    assert {"name": "draft-0", "mountPath": "/draft", "readOnly": True} in container(desired)["volumeMounts"]
    assert env(desired, name="draft-model-downloader")["MODEL_PATH"] == f"/draft/{DRAFT_KEY}/Small.gguf"
    assert [one.part for one in render(desired, RenderOptions()).shared] == ["claim"]


def test_a_draft_on_a_claim_is_read_in_place() -> None:
    beside = drafting(draft=claim_model().model_copy(update={"name": "small"}))
    assert list(init(beside)) == ["model-cache-prep", "model-downloader"]
    assert "/draft/a/m.gguf" in container(beside)["args"]
    same = drafting(model=claim_model(), draft=claim_model().model_copy(update={"name": "small"}))
    assert [one["name"] for one in pod(same)["volumes"]] == ["model-source"]
    assert "/model-source/a/m.gguf" in container(same)["args"]


def test_two_files_of_the_node_are_two_volumes() -> None:
    desired = drafting(model=file_model(), draft=file_model(name="small", cache_key=DRAFT_KEY))
    assert [one["name"] for one in pod(desired)["volumes"]] == ["model-cache", "host-model", "draft-1"]
    mounts = init(desired)["draft-model-downloader"]["volumeMounts"]
    assert {"name": "draft-1", "mountPath": "/host-model/model.gguf", "readOnly": True} in mounts


def test_certificates_are_one_volume_for_both() -> None:
    volumes = [one["name"] for one in pod(drafting(), RenderOptions(ca_configmap="ca"))["volumes"]]
    assert volumes == ["model-cache", "custom-ca-cert"]


def test_an_ephemeral_draft_lies_beside_its_model() -> None:
    desired = drafting(storage=ModelStorage(persistence="Ephemeral"))
    assert [one["name"] for one in pod(desired)["volumes"]] == ["model-storage"]
    assert env(desired, name="draft-model-downloader")["MODEL_PATH"] == "/models/ns-small.gguf"


def directory_model() -> DesiredModel:
    source = ModelSource(kind=SourceKind.FILE, address="file:///srv/models/dir", path="/srv/models/dir", directory=True)
    return DesiredModel(name="base", source=source, format=ModelFormat.SAFETENSORS)


@pytest.mark.parametrize("engine", [Vllm(), Sglang(), TensorRtLlm(), Tgi()], ids=lambda engine: engine.kind)
def test_a_directory_of_the_node_is_mounted_in_place(engine: Any) -> None:
    desired = service(model=directory_model(), engine=engine)
    spec = pod(desired)
    assert spec["volumes"] == [{"name": "host-model", "hostPath": {"path": "/srv/models/dir", "type": "Directory"}}]
    assert container(desired)["volumeMounts"] == [{"name": "host-model", "mountPath": "/host-model", "readOnly": True}]
    assert "/host-model" in container(desired)["args"]
    assert "initContainers" not in spec, "there is nothing to download"
    assert "cache-claim" not in objects(desired)


def test_a_directory_of_the_node_is_not_mounted_where_the_user_brings_the_weights() -> None:
    desired = service(model=directory_model(), engine=Vllm(), skip_model_init=True)
    assert "volumes" not in pod(desired)


def test_adapters_are_downloaded_to_a_volume_of_the_pod() -> None:
    peft = repository_model("v1", files=("adapter_model.safetensors", "adapter_config.json"), source_secret="hub")
    both = AdapterFile(name="sql", source=http_model(sha256="a" * 64)), AdapterFile(name="law", source=peft)
    desired = service(adapters=both)
    containers = init(desired)
    assert list(containers) == ["model-cache-prep", "model-downloader", *(each.container for each in both)]
    assert env(desired, name=both[0].container) == {
        "MODEL_SOURCE": "https://example.com/model.gguf",
        "CACHE_DIR": both[0].directory,
        "MODEL_PATH": both[0].pod_path,
        "MODEL_SHA256": "a" * 64,
    }
    told = env(desired, name=both[1].container)
    assert (told["CACHE_DIR"], told["MODEL_FILES"]) == (both[1].pod_path, "\n".join(peft.files))
    assert containers[both[1].container]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    mounts = [each for each in container(desired)["volumeMounts"] if each["name"] == "lora-adapters"]
    assert mounts == [{"name": "lora-adapters", "mountPath": "/lora-adapters", "readOnly": True}]
    assert {"name": "lora-adapters", "emptyDir": {}} in pod(desired)["volumes"]
    assert f"{both[0].pod_path}:0" in container(desired)["args"]


def test_engines_that_load_adapters_at_runtime_get_files_and_no_arguments() -> None:
    peft = repository_model(files=("adapter_model.safetensors",))
    adapter = AdapterFile(name="sql", source=peft)
    plain, adapted = (service(model=repository_model(), engine=Vllm(), adapters=each) for each in ((), (adapter,)))
    assert container(adapted).get("args") == container(plain).get("args")
    assert list(init(adapted)) == [adapter.container]
