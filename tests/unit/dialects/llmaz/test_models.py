"""OpenModels: their sources, the loader's environment, and the messages for errors."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.errors import NotYet, SpecInvalid
from program.dialects.llmaz.dialect import PLAYGROUNDS, SERVICES
from program.dialects.llmaz.parse.models import Claim, claims_of, find_models, labels_of
from program.dialects.llmaz.parse.source import hub_source, uri_source
from program.dialects.llmaz.schema.model import ModelHub
from program.dialects.llmaz.schema.playground import ModelClaim, ModelClaims
from tests.unit.dialects.llmaz.objects import Cluster, open_model, playground, service


def values(variables: Any) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in variables or ()}


@pytest.mark.parametrize(
    ("uri", "kind", "path", "told"),
    [
        (
            "oss://weights.oss-eu-1.example.org/team/llm/tiny-7b",
            "oss",
            "/workspace/models/models--tiny-7b",
            {
                "MODEL_SOURCE_TYPE": "objstore",
                "PROVIDER": "OSS",
                "ENDPOINT": "oss-eu-1.example.org",
                "BUCKET": "weights",
                "MODEL_PATH": "team/llm/tiny-7b",
            },
        ),
        (
            "OSS://b.e/x.Q4.gguf",
            "oss",
            "/workspace/models/x.Q4.gguf",
            {
                "MODEL_SOURCE_TYPE": "objstore",
                "PROVIDER": "OSS",
                "ENDPOINT": "e",
                "BUCKET": "b",
                "MODEL_PATH": "x.Q4.gguf",
            },
        ),
        (
            "s3://weights/team/tiny",
            "s3",
            "/workspace/models/models--tiny",
            {"MODEL_SOURCE_TYPE": "objstore", "PROVIDER": "S3", "BUCKET": "weights", "MODEL_PATH": "team/tiny"},
        ),
        (
            "gcs://weights/tiny",
            "gcs",
            "/workspace/models/models--tiny",
            {"MODEL_SOURCE_TYPE": "objstore", "PROVIDER": "GCS", "BUCKET": "weights", "MODEL_PATH": "tiny"},
        ),
        ("host:///srv/models/x", "host", "/srv/models/x", {}),
        ("ollama://qwen2:0.5b", "ollama", "/workspace/models/models--qwen2:0.5b", {}),
    ],
)
def test_an_address_is_read(uri: str, kind: str, path: str, told: dict[str, str]) -> None:
    source = uri_source(uri)
    assert (source.kind, source.path, values(source.loader)) == (kind, path, told)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "weights/m",
        "http://weights.example.org/m",
        "gs://bucket/m",
        "oss://bucket/m",
        "oss://.endpoint/m",
        "s3://bucket",
        "s3://bucket/",
        "s3:///m",
        "s3://bucket/s3://other",
        "ollama://",
        "host://relative/path",
        "host:///srv/../etc",
    ],
)
def test_an_address_that_makes_no_sense_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="host:///path"):
        uri_source(uri)


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("oss://bucket.evil.example\\@oss-eu-1.example.org/m", "backslash"),
        ("oss://bucket.oss-eu-1.example.org@evil.example/m", "user or a password"),
        ("oss://bucket.evil.example:0/m", "port"),
        ("oss://bucket.evil.example?.oss-eu-1.example.org/m", "host"),
        ("s3://key:secret@bucket/m", "user or a password"),
        ("gcs://bucket/a\x1b", "control characters"),
        ("host:///srv/a\\b", "backslash"),
    ],
)
def test_an_address_with_two_readings_is_refused(uri: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        uri_source(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("hub", "path", "told"),
    [
        ({"modelID": "acme/tiny"}, "models--acme--tiny", {"REVISION": "main"}),
        ({"modelID": "tiny"}, "models--tiny", {"REVISION": "main"}),
        ({"modelID": "a/b", "filename": "b.gguf"}, "b.gguf", {"MODEL_FILENAME": "b.gguf", "REVISION": "main"}),
        (
            {"modelID": "a/b", "revision": "v2", "allowPatterns": ["*.json", "x*"], "ignorePatterns": ["*.bin"]},
            "models--a--b",
            {"REVISION": "v2", "MODEL_ALLOW_PATTERNS": "*.json,x*", "MODEL_IGNORE_PATTERNS": "*.bin"},
        ),
    ],
)
def test_a_hub_is_read(hub: dict[str, Any], path: str, told: dict[str, str]) -> None:
    source = hub_source(ModelHub.model_validate(hub))
    always = {"MODEL_SOURCE_TYPE": "modelhub", "MODEL_ID": hub["modelID"], "MODEL_HUB_NAME": "Huggingface"}
    assert source.path == f"/workspace/models/{path}"
    assert source.remote == hub["modelID"]
    assert values(source.loader) == {**always, **told}
    assert [secret["name"] for secret in source.credentials] == ["HUGGING_FACE_HUB_TOKEN", "HF_TOKEN"]


def test_another_hub_gets_no_token_of_hugging_face() -> None:
    source = hub_source(ModelHub.model_validate({"modelID": "a/b", "name": "ModelScope", "revision": "master"}))
    assert values(source.loader)["MODEL_HUB_NAME"] == "ModelScope"
    assert source.credentials == ()


def test_every_secret_may_be_missing() -> None:
    for source in (
        hub_source(ModelHub.model_validate({"modelID": "a/b"})),
        *(uri_source(uri) for uri in ("oss://b.e/x", "s3://b/x", "gcs://b/x")),
    ):
        assert source.credentials
        assert all(each["valueFrom"]["secretKeyRef"]["optional"] for each in source.credentials)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"modelHub": {"modelID": "a/b"}, "uri": "s3://b/m"}, "spec.source: sets modelHub and uri"),
        ({"uri": None}, "spec.source: has neither modelHub nor uri"),
        ({"uri": "gs://b/m"}, "spec.source.uri"),
        ({"modelHub": {"modelID": ""}}, "spec.source.modelHub.modelID"),
        ({"modelHub": {}}, "spec.source.modelHub.modelID"),
        ({"modelHub": {"modelID": "a/b", "name": "Other"}}, "spec.source.modelHub.name"),
        (
            {"modelHub": {"modelID": "a/b", "name": "ModelScope", "filename": "x"}},
            "spec.source.modelHub.filename: works with Huggingface only, not with ModelScope",
        ),
        (
            {"modelHub": {"modelID": "a/b", "filename": "x", "allowPatterns": ["*"]}},
            "spec.source.modelHub.allowPatterns",
        ),
        ({"modelHub": {"modelID": "a/b", "filename": "x", "ignorePatterns": ["*"]}}, "modelHub.ignorePatterns"),
    ],
)
def test_what_is_wrong_about_a_model_is_said_where_it_is_named(source: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        find_models([Claim("m", "main", "spec.modelClaim.modelName")], Cluster(open_model(**source)))
    assert raised.value.field == "spec.modelClaim.modelName"
    assert raised.value.why.startswith("OpenModel `m` is not valid: ")
    assert said in raised.value.why


def test_a_model_that_is_missing_may_still_come() -> None:
    with pytest.raises(NotYet) as raised:
        find_models([Claim("m", "main", "spec.modelClaim.modelName")], Cluster())
    assert (raised.value.reason, raised.value.field) == ("ModelNotFound", "spec.modelClaim.modelName")


def test_the_main_model_comes_first_wherever_it_is_listed() -> None:
    models = [{"name": "small", "role": "draft"}, {"name": "big"}]
    claims, flavors, field = claims_of(
        None, ModelClaims.model_validate({"models": models, "inferenceFlavors": ["h100"]})
    )
    assert [(claim.name, claim.role, claim.field) for claim in claims] == [
        ("big", "main", "spec.modelClaims.models[1].name"),
        ("small", "draft", "spec.modelClaims.models[0].name"),
    ]
    assert (flavors, field) == (("h100",), "spec.modelClaims.inferenceFlavors")


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (["draft"], "has 1 models; a draft needs exactly one other model"),
        (["main", "draft", "draft"], "has 3 models; a draft"),
        (["draft", "draft"], "has 0 models with the role main"),
        (["main", "main"], "has 2 models with the role main"),
    ],
)
def test_models_that_make_no_pair_are_refused(roles: list[str], said: str) -> None:
    models = [{"name": f"m{index}", "role": role} for index, role in enumerate(roles)]
    with pytest.raises(SpecInvalid, match=said) as raised:
        claims_of(None, ModelClaims.model_validate({"models": models}))
    assert raised.value.field == "spec.modelClaims.models"


def test_one_of_the_two_ways_to_name_a_model_is_taken() -> None:
    one = ModelClaim.model_validate({"modelName": "m"})
    several = ModelClaims.model_validate({"models": [{"name": "m"}]})
    with pytest.raises(SpecInvalid, match="set one of them"):
        claims_of(one, several)
    with pytest.raises(SpecInvalid, match="names no model"):
        claims_of(None, None)


def test_an_open_model_is_labelled_with_its_family() -> None:
    for dialect in (PLAYGROUNDS, SERVICES):
        assert dialect.labels(open_model()) == {"llmaz.io/model-family-name": "acme-lm"}
    assert SERVICES.labels(service()) == {}
    assert labels_of({"spec": {"familyName": "no label!"}}) == {}
    assert labels_of({}) == {}


@pytest.mark.parametrize(
    ("name", "family", "label", "told"),
    [
        ("m", "Llama 3.1 (8B)", "llmaz.io/model-family-name", "spec.familyName `Llama 3.1 (8B)`"),
        ("m" * 64, "acme-lm", "llmaz.io/model-name", "metadata.name"),
    ],
)
def test_what_cannot_be_a_label_is_left_off_the_pods_and_told(name: str, family: str, label: str, told: str) -> None:
    model = open_model(name)
    model["spec"]["familyName"] = family
    for dialect, cr in (
        (PLAYGROUNDS, playground(modelClaims={"models": [{"name": name}]})),
        (SERVICES, service(modelClaims={"models": [{"name": name}]})),
    ):
        assert label not in dialect.labels(cr)
        parsed = dialect.parse(cr, Cluster(model))
        assert parsed.desired.workloads is not None
        labels = parsed.desired.workloads.main.template["metadata"]["labels"]
        assert label not in labels
        assert len([each for each in labels if each.startswith("llmaz.io/")]) == 1
        (problem,) = parsed.unsupported
        assert problem.field == "spec.modelClaims.models[0].name"
        assert told in problem.message
        assert f"is not valid as label {label}" in problem.message


def test_an_address_that_nobody_knows_is_told_with_those_that_are_known() -> None:
    with pytest.raises(SpecInvalid) as raised:
        find_models([Claim("m", "main", "spec.modelClaim.modelName")], Cluster(open_model(uri="gs://bucket/dir")))
    assert "`gs://bucket/dir` is none of oss://bucket.endpoint/path, s3://bucket/path" in raised.value.why
