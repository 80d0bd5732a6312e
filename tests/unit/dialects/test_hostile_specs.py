"""Parsing any InferenceService gives desired state or a DesiredError, never another exception."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.errors import DesiredError
from program.desired.model import GpuVendor, ModelGpu
from program.dialects.annotations import ANNOTATION_IDLE_ENDPOINT
from program.dialects.crds.schema import CrdModel
from program.dialects.llmkube.parse.service import draft_reference, parse_service, unsupported_fields
from program.dialects.llmkube.schema.service import ServiceSpec
from program.runtimes import runtime_for
from tests.unit.dialects.services import model, service

TEXTS = (
    "",
    "a",
    "-",
    "/",
    "a/b",
    "{",
    '{"name": 1}',
    "1g.10gb",
    "partitioned",
    "9" * 400,
    "1e999",
    "99.9",
    "true",
    "é\n",
)
TOKENS = st.sampled_from(
    [*TEXTS, "llamacpp", "vllm", "sglang", "shared", "draft", "mtp", "Ephemeral", "latency", "Pods"]
)
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | TOKENS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TOKENS, inner, max_size=3),
    max_leaves=6,
)


def of(kind: type[CrdModel]) -> st.SearchStrategy[Json]:
    """Generate objects with some fields of a model; some values have the right type."""
    fields = {info.alias or name: nested(info.annotation) | JUNK for name, info in kind.model_fields.items()}
    return st.lists(st.sampled_from(sorted(fields)), max_size=5, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )


def nested(annotation: Any) -> st.SearchStrategy[Any]:
    """Generate values of a field's annotated type, if it is made of models, literals, strings, numbers and booleans."""
    options = [part for part in getattr(annotation, "__args__", ()) if part is not type(None)] or [annotation]
    choices: list[st.SearchStrategy[Any]] = []
    for option in options:
        if isinstance(option, type) and issubclass(option, CrdModel):
            choices.append(of(option))
        elif isinstance(option, str | int) and not isinstance(option, bool):
            choices.append(st.just(option))
        elif option is int:
            choices.append(st.integers(0, 10))
        elif option is str:
            choices.append(TOKENS)
        elif option is bool:
            choices.append(st.booleans())
        elif getattr(option, "__args__", ()):
            choices.append(nested(option))
    return st.one_of(choices) if choices else JUNK


ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [value for name, value in vars(keys).items() if name.startswith("ANNOTATION_")] + [ANNOTATION_IDLE_ENDPOINT]
    ),
    st.sampled_from([*TEXTS, "gateway", "ingress", "namespace", "25%", "false"]),
    max_size=4,
)
MODELS = st.sampled_from(
    [
        model(),
        model(accelerator="metal"),
        model(source="hf://o/r", files=("a.gguf", "b.gguf"), mmproj="p.gguf"),
        model(source="pvc://c/m.gguf", gpu=ModelGpu(count=2, vendor=GpuVendor.AMD, backend="rocm")),
        model(source="s3://bucket/m.gguf", gpu=ModelGpu(claims=({"name": "x", "resourceClaimName": "y"},))),
    ]
)


@settings(max_examples=150, deadline=None)
@given(spec=of(ServiceSpec), annotations=ANNOTATIONS, served=MODELS)
def test_nothing_in_a_spec_ends_in_a_crash(spec: Json, annotations: Json, served: Any) -> None:
    cr = service(annotations=annotations, **{"runtime": "llamacpp", **spec})
    with contextlib.suppress(DesiredError):
        desired = parse_service(cr, served, draft=model("a"))
        assert {type(problem.field) for problem in unsupported_fields(cr, desired)} <= {str}
        runtime = runtime_for(desired.engine)
        argv = runtime.argv(desired, model_path="/m/a.gguf", port=8080, host="::", draft_path="/d")
        assert all(isinstance(argument, str) for argument in argv)
        runtime.completion(desired)
        runtime.idle_probe(desired)
    draft_reference(cr)


def test_the_strategy_reaches_valid_services() -> None:
    """Without valid services the test above would only test refusals."""
    accepted = 0

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(spec=of(ServiceSpec))
    def count(spec: Json) -> None:
        nonlocal accepted
        with contextlib.suppress(DesiredError):
            parse_service(service(**spec), model(), draft=model("a"))
            accepted += 1

    count()
    assert accepted > 5
