"""The hardware that llama-server's log names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from automation.serving.acceleration import Acceleration, parse, reported
from program.desired.engines import Vllm
from program.desired.facts import AccelerationFacts
from program.desired.model import Gpu
from tests.support.builders import service
from tests.support.loop import eventually
from tests.support.pod_proxy import PodProxy, Say
from tests.support.pods import remembered

CUDA = """ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA L4, compute capability 8.9, VMM: yes
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA L4) - 22000 MiB free
load_tensors: offloading 32 repeating layers to GPU
load_tensors: offloaded 33/33 layers to GPU
"""


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (CUDA, ("CUDA", 33, 33)),
        ("ggml_cuda_init: found 2 ROCm devices:\nload_tensors: offloaded 10/33 layers to GPU", ("ROCm", 10, 33)),
        ("ggml_vulkan: Found 1 Vulkan devices:\nload_tensors: offloaded 5/5 layers to GPU", ("Vulkan", 5, 5)),
        ("using device SYCL0\noffloaded 5/5 layers to GPU", ("SYCL", 5, 5)),
        ("something else\noffloaded 5/5 layers to GPU", ("GPU", 5, 5)),
        (CUDA.replace("33/33", "0/33"), ("CPU", 0, 33)),
    ],
)
def test_layers_and_device_are_read(text: str, facts: tuple[str, int, int]) -> None:
    device, offloaded, total = facts
    assert parse(text) == AccelerationFacts(device=device, layers_offloaded=offloaded, layers_total=total)


def test_a_log_that_says_nothing_says_nothing() -> None:
    assert parse("") is None
    assert parse("offloaded x/33 layers to GPU") is None


@pytest.fixture
def proxy() -> Iterator[PodProxy]:
    with PodProxy() as running:
        running.other = lambda *_: Say(body=CUDA.encode())
        yield running


def test_one_replicas_log_is_read_once(proxy: PodProxy) -> None:
    acceleration = Acceleration(proxy.client)
    desired, pods = service(gpu=Gpu(count=1)), (remembered("a"), remembered("b"), remembered("c", healthy=False))
    assert acceleration.latest(desired, pods, changed=lambda: None) is None
    eventually(acceleration.idle, what="the log", timeout_s=60)
    for _ in range(3):
        found = acceleration.latest(desired, pods, changed=lambda: None)
        assert found is not None and found.device == "CUDA"
    ((method, path, _),) = proxy.others
    assert (method, path) == ("GET", "/api/v1/namespaces/ns/pods/a/log?container=llama-server&limitBytes=65536")
    acceleration.close()


def test_where_no_gpu_is_asked_for_or_the_engine_is_another_nothing_is_read(proxy: PodProxy) -> None:
    acceleration = Acceleration(proxy.client)
    for desired in (service(), service(engine=Vllm(), gpu=Gpu(count=1))):
        assert acceleration.latest(desired, (remembered("a"),), changed=lambda: None) is None
    assert acceleration.latest(service(gpu=Gpu(count=1)), (), changed=lambda: None) is None
    assert acceleration.idle() and not proxy.others


def test_what_the_status_says_is_believed_until_the_log_is_read() -> None:
    told = {"device": "CUDA", "layersOffloaded": 3, "layersTotal": 4}
    facts = AccelerationFacts(device="CUDA", layers_offloaded=3, layers_total=4)
    assert reported({"status": {"acceleration": told}}) == facts
    assert reported({}) is None
