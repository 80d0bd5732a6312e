"""All dialects recognise the same accelerators, and report ranks that do not match their number."""

from __future__ import annotations

from typing import Any

import pytest

from components import demand
from program.desired.accelerators import count_of, is_accelerator, vendor_of
from program.desired.model import GpuVendor
from program.dialects.converting.arguments import with_gpus, without_gpus
from program.dialects.converting.pods import amounts_of
from program.dialects.llmkube.parse.service import unsupported_fields
from program.dialects.pods.gpus import gpu_of_container
from tests.unit.dialects.kserve.combining import service as kserve_service
from tests.unit.dialects.kserve.parsing import parsed
from tests.unit.dialects.services import model, parse, service

KNOWN = {
    "nvidia.com/gpu": GpuVendor.NVIDIA,
    "nvidia.com/gpu.shared": GpuVendor.NVIDIA,
    "nvidia.com/mig-1g.5gb": GpuVendor.NVIDIA,
    "nvidia.com/mig-1g.10gb.me": GpuVendor.NVIDIA,
    "nvidia.com/mig-2g.48gb": GpuVendor.NVIDIA,
    "nvidia.com/mig-1c.3g.20gb": GpuVendor.NVIDIA,
    "amd.com/gpu": GpuVendor.AMD,
    "amd.com/cpx_nps4": GpuVendor.AMD,
    "devic.es/dri-render": GpuVendor.AMD,
    "gpu.intel.com/i915": GpuVendor.INTEL,
    "gpu.intel.com/xe": GpuVendor.INTEL,
    "intel.com/gpu": GpuVendor.INTEL,
    "google.com/tpu": GpuVendor.OTHER,
    "habana.ai/gaudi": GpuVendor.OTHER,
    "aws.amazon.com/neuroncore": GpuVendor.OTHER,
    "huawei.com/Ascend910": GpuVendor.OTHER,
    "custom.gpu.io/gpu": GpuVendor.OTHER,
}
NONE = ("cpu", "memory", "rdma/hca", "nvidia.com/gpumem", "gpu.intel.com/millicores", "gpu.intel.com/memory.max")


@pytest.mark.parametrize("resource", KNOWN)
def test_an_accelerator_is_known_to_every_dialect_to_quotas_and_to_convert(resource: str) -> None:
    assert vendor_of(resource) is KNOWN[resource]
    container = {"name": "main", "resources": {"limits": {resource: "2", "rdma/hca": "1"}}}
    gpu = gpu_of_container(container)
    assert gpu is not None and (gpu.count, gpu.resource_name, gpu.vendor) == (2, resource, KNOWN[resource])
    assert demand.gpus(container) == count_of({resource: "2", "rdma/hca": "1"}) == 2
    assert amounts_of(container["resources"])[2:] == (2, resource, ["limits.rdma/hca"])  # type: ignore[arg-type]  # a literal


@pytest.mark.parametrize("resource", NONE)
def test_what_is_beside_an_accelerator_is_none(resource: str) -> None:
    assert not is_accelerator(resource)
    assert gpu_of_container({"name": "main", "resources": {"limits": {resource: "500"}}}) is None


@pytest.mark.parametrize(
    ("runtime", "args", "gpus", "told"),
    [
        ("vllm", ["--pipeline-parallel-size", "2"], 2, ""),
        ("vllm", ["-tp", "2", "-pp=2"], 2, "4 ranks"),
        ("vllm", ["--seed", "1", "-pp", "3"], 4, "3 ranks"),
        ("sglang", ["--dp-size", "2"], 2, ""),
        ("sglang", ["--tp=4"], 2, "4 ranks"),
        ("llamacpp", ["-tp", "2"], 2, ""),
    ],
)
def test_ranks_of_arguments_that_do_not_fit_are_named(runtime: str, args: list[str], gpus: int, told: str) -> None:
    cr = service(runtime=runtime, extraArgs=args, resources={"gpu": gpus})
    problems = unsupported_fields(cr, parse(cr, model(source="hf://org/repo")))
    found = [(problem.field, problem.message) for problem in problems if problem.field.startswith("spec.extraArgs")]
    assert [message[: len(told)] for _, message in found] == ([told] if told else [])
    if told:
        assert (
            found[0][0] == f"spec.extraArgs[{max(i for i, word in enumerate(args) if 'p' in word and word[0] == '-')}]"
        )


@pytest.mark.parametrize(
    ("parallelism", "args", "told"),
    [
        ({"tensor": 2}, [], ""),
        ({"tensor": 2}, ["-pp", "2"], "4 ranks"),
        (None, ["--tensor-parallel-size=4"], "4 ranks"),
        (None, [], ""),
    ],
)
def test_kserves_ranks_are_counted_with_its_fields(parallelism: Any, args: list[str], told: str) -> None:
    main = {"name": "main", "args": args, "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    spec = {"template": {"containers": [main]}, **({"parallelism": parallelism} if parallelism else {})}
    messages = [problem.message for problem in parsed(kserve_service(spec)).unsupported]
    assert [message for message in messages if " ranks " in message] == [m for m in messages if told and told in m]
    assert any(told in message for message in messages) if told else True


@pytest.mark.parametrize(
    ("engine", "args", "gpus", "implied"),
    [
        ("vllm", ["--pipeline-parallel-size", "2"], 2, []),
        ("vllm", ["--pipeline-parallel-size", "2"], 4, ["--tensor-parallel-size", "2"]),
        ("vllm", ["--tensor-parallel-size", "2"], 4, []),
        ("sglang", ["--dp-size", "2"], 2, []),
        ("sglang", ["--tp-size", "2"], 2, []),
        ("vllm", [], 2, ["--tensor-parallel-size", "2"]),
    ],
)
def test_convert_adds_what_other_ranks_leave(engine: Any, args: list[str], gpus: int, implied: list[str]) -> None:
    assert with_gpus(engine, args, gpus) == [*args, *implied]
    if not args:
        assert without_gpus(engine, implied, gpus) == []
