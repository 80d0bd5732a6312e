"""Which Secrets the gateway reads to reach engines, and what it makes of them."""

from __future__ import annotations

import datetime

import pytest

from automation.certificates.files import serving_files
from gateway.names import ServiceName
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_API_KEY_SECRET, ANNOTATION_ENGINE_KEY, ANNOTATION_ENGINE_KEY_GENERATION
from program.dialects.engine_access import (
    KeyReference,
    Requirements,
    SecretName,
    SecretValues,
    access_of,
    requirements_of,
)
from program.dialects.engine_keys import key_of, keys_of

KEYS = SecretName("prod", "keys")
CERTIFICATES = SecretName("prod", "chat-kserve-self-signed-certs")


def cr(annotations: dict[str, str] | None = None, **spec: object) -> Json:
    return {"metadata": {"namespace": "prod", "name": "chat", "annotations": annotations or {}}, "spec": spec}


def variable(name: str, secret: str = "keys", key: str = "engine") -> Json:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def pem(now: datetime.datetime | None = None) -> dict[str, str]:
    made = serving_files(("chat.prod.svc",), (), now=now or datetime.datetime.now(datetime.UTC))
    return {name: text.decode() for name, text in made.items() if name != "tls.key"}


@pytest.mark.parametrize(
    ("dialect", "given", "found"),
    [
        ("llmkube", cr(), None),
        ("llmkube", cr({ANNOTATION_API_KEY_SECRET: "keys"}), ("keys", "api-key")),
        ("kserve", cr({ANNOTATION_API_KEY_SECRET: "keys/one"}), ("keys", "one")),
        ("llmkube", cr({ANNOTATION_ENGINE_KEY: "true"}), ("chat-engine-key", "api-key")),
        (
            "llmkube",
            cr({ANNOTATION_ENGINE_KEY: "true", ANNOTATION_ENGINE_KEY_GENERATION: "3"}),
            ("chat-engine-key-3", "api-key"),
        ),
        ("llmkube", cr({ANNOTATION_ENGINE_KEY: "false"}), None),
        ("kserve", cr({ANNOTATION_ENGINE_KEY: "true"}), None),
        ("llmkube", cr(env=[{"name": "HOME", "value": "/"}, variable("VLLM_API_KEY")]), ("keys", "engine")),
        ("kserve", cr(template={"containers": [{"env": [variable("VLLM_API_KEY")]}]}), ("keys", "engine")),
        ("llmaz", cr(backendRuntimeConfig={"envs": [variable("LLAMA_API_KEY")]}), ("keys", "engine")),
        ("llmkube", cr(env=[variable("HF_TOKEN")]), None),
        ("llmkube", cr(env=[{"name": "VLLM_API_KEY", "value": "in the open"}]), None),
        ("llmaz-service", cr(env=[variable("VLLM_API_KEY")]), None),
    ],
)
def test_the_key_of_an_engine_is_found_in_its_service(dialect: str, given: Json, found: tuple[str, str] | None) -> None:
    assert key_of(dialect, given) == found


def test_only_the_needed_parts_of_secrets_are_read() -> None:
    needed = requirements_of("kserve", "prod", "chat", [("keys", "engine")])
    assert needed.secrets(tls=False) == {KEYS: {"engine"}}
    assert needed.secrets(tls=True) == {KEYS: {"engine"}, CERTIFICATES: {"ca.crt", "tls.crt"}}
    assert needed.server_name == "chat-kserve-workload-svc.prod.svc"
    assert requirements_of("llmkube", "prod", "chat", ()).secrets(tls=True) == {}


@pytest.mark.parametrize("key", [("", "api-key"), ("..", "api-key"), ("a b", "x"), ("keys", ""), ("keys", "a/b")])
def test_a_reference_that_names_no_secret_is_not_read_and_not_shown(key: tuple[str, str]) -> None:
    needed = requirements_of("llmkube", "prod", "chat", [key])
    assert needed.secrets(tls=True) == {}
    problem = access_of(needed, {}, tls=False).problem
    assert "neither the name of a Secret nor" in problem
    assert "a b" not in problem


def test_a_key_becomes_a_header_and_is_not_shown() -> None:
    needed = Requirements(KeyReference(KEYS, "engine"))
    access = access_of(needed, {KEYS: SecretValues({"engine": "s3cret\n"})}, tls=False)
    assert access.authorizations == (b"Authorization: Bearer s3cret\r\n",)
    assert "s3cret" not in repr(access)


def test_keys_before_the_present_one_are_tried_after_it() -> None:
    """Pods take a new key only when they are replaced."""
    service = ServiceName("prod", "chat")
    one, two = (SecretName("prod", f"chat-engine-key{each}") for each in ("", "-2"))
    first = access_of(
        requirements_of(
            "llmkube", service.namespace, service.name, keys_of("llmkube", cr({ANNOTATION_ENGINE_KEY: "true"}))
        ),
        {one: SecretValues({"api-key": "k1"}, {"api-key": "k0"})},
        tls=False,
    )
    assert first.keys == ("k1", "k0"), "a value that was changed by hand"
    rotated = cr({ANNOTATION_ENGINE_KEY: "true", ANNOTATION_ENGINE_KEY_GENERATION: "2"})
    needed = requirements_of("llmkube", service.namespace, service.name, keys_of("llmkube", rotated))
    assert needed.secrets(tls=False) == {one: {"api-key"}, two: {"api-key"}}
    known = {one: SecretValues({"api-key": "k1"})}
    assert access_of(needed, known, tls=False).keys == ("k1",), "the new Secret may be made after the annotation"
    known[two] = SecretValues({"api-key": "k2"})
    assert access_of(needed, known, tls=False).keys == ("k2", "k1")
    known[one] = SecretValues(problem="does not exist")
    after = access_of(needed, known, tls=False, before=first)
    assert after.keys == ("k2", "k1", "k0")
    assert "k1" not in repr(after)
    assert "does not exist" in access_of(needed, {one: known[one], two: known[one]}, tls=False, before=first).problem


@pytest.mark.parametrize(
    ("secrets", "why"),
    [
        ({}, "was not read yet"),
        ({KEYS: SecretValues(problem="does not exist")}, "does not exist"),
        ({KEYS: SecretValues({})}, "has no valid key"),
        ({KEYS: SecretValues({"engine": "two\r\nlines"})}, "has no valid key"),
    ],
)
def test_without_its_key_a_service_gets_no_request(secrets: dict[SecretName, SecretValues], why: str) -> None:
    assert why in access_of(Requirements(KeyReference(KEYS, "engine")), secrets, tls=False).problem


@pytest.mark.parametrize(
    ("needed", "values", "why"),
    [
        (Requirements(), SecretValues(), "no authority is known"),
        (Requirements(certificates=CERTIFICATES), SecretValues(problem="does not exist"), "does not exist"),
        (Requirements(certificates=CERTIFICATES), SecretValues({}), "has no valid certificate"),
        (Requirements(certificates=CERTIFICATES), SecretValues({"ca.crt": "nonsense"}), "has no valid certificate"),
    ],
)
def test_without_an_authority_an_engine_with_tls_gets_no_request(
    needed: Requirements, values: SecretValues, why: str
) -> None:
    access = access_of(needed, {CERTIFICATES: values}, tls=True)
    assert why in access.problem
    assert access.tls is None


def test_the_context_changes_only_with_the_certificates() -> None:
    needed, first = Requirements(certificates=CERTIFICATES, server_name="x"), SecretValues(pem())
    one = access_of(needed, {CERTIFICATES: first}, tls=True)
    assert access_of(needed, {CERTIFICATES: first}, tls=True, before=one).tls is one.tls
    second = SecretValues(pem(), previous=first.values)
    rotated = access_of(needed, {CERTIFICATES: second}, tls=True, before=one)
    assert rotated.tls is not one.tls
    assert rotated.tls is not None
    assert len(rotated.tls.get_ca_certs()) == 2, "replicas with the last certificate are still trusted"
