"""The causes for which a pod does not serve, with messages of real kubelets and engines."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.facts import MemoryFacts, PodFacts
from program.dialects.status.conditions import MODEL_TRANSFER_REASONS, Reason
from program.dialects.status.pod_causes import cause_of, gib, transfer_failure, worst_cause

ENGINE: dict[str, Any] = {"name": "svc-1", "container": "llama-server", "phase": "Running"}
DOWNLOADER: dict[str, Any] = {"name": "svc-1", "container": "model-downloader", "init": True}
CRASHED: dict[str, Any] = {"waiting_reason": "CrashLoopBackOff", "exit_code": 1, "restarts": 4}
WHERE = "https://example.com/m.gguf"


@pytest.mark.parametrize(
    ("pod", "reason", "told"),
    [
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="ImagePullBackOff", waiting_message="not found", image="r.example/x:1"),
            Reason.IMAGE_PULL_FAILED,
            ("r.example/x:1", "ImagePullBackOff: not found"),
            id="image-back-off",
        ),
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="ErrImagePull", waiting_message="unauthorized"),
            Reason.IMAGE_PULL_FAILED,
            ("ErrImagePull: unauthorized",),
            id="image-error",
        ),
        pytest.param(
            PodFacts(**DOWNLOADER, waiting_reason="ErrImagePull", waiting_message="unauthorized"),
            Reason.IMAGE_PULL_FAILED,
            ("container model-downloader",),
            id="image-of-an-init-container",
        ),
        pytest.param(
            PodFacts(**ENGINE, **CRASHED, waiting_message="error: invalid argument: --made-up"),
            Reason.CRASH_LOOPING,
            ("llama-server", "4 restarts", "exit code 1", "error: invalid argument: --made-up"),
            id="crash-loop",
        ),
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="Error", exit_code=2),
            Reason.CRASH_LOOPING,
            ("exit code 2",),
            id="first-crash",
        ),
        pytest.param(
            PodFacts(**ENGINE, restarts=1, exit_code=1, waiting_message="boom"),
            Reason.CRASH_LOOPING,
            ("1 restart)", "boom"),
            id="restarted-and-not-ready-yet",
        ),
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="CrashLoopBackOff", oom_killed=True, exit_code=137, restarts=2),
            Reason.OUT_OF_MEMORY,
            ("killed because it ran out of memory", "2 restarts", "spec.resources.memory"),
            id="killed-in-a-crash-loop",
        ),
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="OOMKilled", exit_code=137, requests={"memory": "512Mi"}),
            Reason.OUT_OF_MEMORY,
            ("it requests 512Mi",),
            id="killed-just-now",
        ),
        pytest.param(
            PodFacts(
                **ENGINE,
                **CRASHED,
                waiting_message="ggml_cuda_init: CUDA driver version is insufficient for CUDA runtime",
            ),
            Reason.DRIVER_TOO_OLD,
            ("NVIDIA driver is too old", "CUDA driver version is insufficient"),
            id="driver-of-nvidia",
        ),
        pytest.param(
            PodFacts(**ENGINE, **CRASHED, waiting_message="forward compatibility was attempted on non supported HW"),
            Reason.DRIVER_TOO_OLD,
            ("forward compatibility was attempted",),
            id="driver-without-forward-compatibility",
        ),
        pytest.param(
            PodFacts(
                **{**ENGINE, "phase": "Pending"},
                waiting_reason="StartError",
                exit_code=128,
                waiting_message="nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8",
            ),
            Reason.DRIVER_TOO_OLD,
            ("cuda>=12.8",),
            id="driver-refused-by-the-container-runtime",
        ),
        pytest.param(
            PodFacts(**ENGINE, **CRASHED, waiting_message="HIP error: hipErrorInsufficientDriver"),
            Reason.DRIVER_TOO_OLD,
            ("ROCm driver is too old",),
            id="driver-of-amd",
        ),
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="CrashLoopBackOff", exit_code=137, restarts=3),
            Reason.PROBES_FAILING,
            ("was killed", "3 restarts", "probes fail"),
            id="killed-by-the-kubelet",
        ),
        pytest.param(
            PodFacts(**ENGINE, restarts=1, exit_code=143),
            Reason.PROBES_FAILING,
            ("exit code 143",),
            id="ended-by-the-kubelet",
        ),
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="Unhealthy", waiting_message="HTTP probe failed: 503"),
            Reason.PROBES_FAILING,
            ("HTTP probe failed: 503",),
            id="probes-of-a-running-container",
        ),
        pytest.param(
            PodFacts(**ENGINE, waiting_reason="CreateContainerConfigError", waiting_message='secret "hf" not found'),
            Reason.POD_FAILING,
            ('CreateContainerConfigError: secret "hf" not found',),
            id="container-cannot-be-made",
        ),
        pytest.param(
            PodFacts(name="svc-1", phase="Failed"), Reason.POD_FAILING, ("the pod is Failed",), id="pod-failed"
        ),
        pytest.param(
            PodFacts(**ENGINE, ready=True, proof="failed", proof_message="no token within 60 s"),
            Reason.COMPLETION_FAILED,
            ("answers no completion: no token within 60 s",),
            id="completion",
        ),
        pytest.param(
            PodFacts(name="svc-1", container="wait-for-it", init=True, **CRASHED, waiting_message="timed out"),
            Reason.CRASH_LOOPING,
            ("container wait-for-it", "timed out"),
            id="another-init-container",
        ),
    ],
)
def test_the_cause_is_named_with_what_was_said(pod: PodFacts, reason: Reason, told: tuple[str, ...]) -> None:
    cause = cause_of(pod)
    assert cause is not None
    assert cause.reason is reason
    for part in (*told, "pod svc-1: "):
        assert part in cause.text


@pytest.mark.parametrize(
    ("words", "reason", "told"),
    [
        (f"ModelSourceUnauthorized: {WHERE}: the server answered 401", "ModelSourceUnauthorized", "answered 401"),
        (f"ModelSourceNotFound: {WHERE}: the server answered 404", "ModelSourceNotFound", "answered 404"),
        (f"ModelSourceUntrusted: {WHERE}: curl: (60) SSL", "ModelSourceUntrusted", "SSL"),
        (f"ModelSourceUnreachable: {WHERE}: curl: (6)", "ModelSourceUnreachable", "curl: (6)"),
        (f"ModelSourceInvalid: {WHERE}: curl: (3) bad", "ModelSourceInvalid", "bad"),
        (f"ModelTransferOutOfSpace: {WHERE}: no room", "ModelTransferOutOfSpace", "no room"),
        (f"ModelChecksumMismatch: {WHERE}: its SHA-256 is 0", "ModelChecksumMismatch", "SHA-256"),
        ("ModelCacheNotWritable: /models cannot be written by uid 100", "ModelCacheNotWritable", "uid 100"),
        (f"ModelTransferFailed: {WHERE}: stopped", "ModelTransferFailed", "stopped"),
        (
            "Trying again: x: curl: (6) y\nTrying again\nModelSourceNotFound: gone\n",
            "ModelSourceNotFound",
            "gone",
        ),
        ("curl: (22) The requested URL returned error: 401", "ModelSourceUnauthorized", "error: 401"),
        ("curl: (22) The requested URL returned error: 403 Forbidden", "ModelSourceUnauthorized", "403"),
        ("curl: (22) The requested URL returned error: 404", "ModelSourceNotFound", "404"),
        ("<Error><Code>NoSuchKey</Code></Error>", "ModelSourceNotFound", "NoSuchKey"),
        ("curl: (60) SSL certificate problem: self-signed certificate", "ModelSourceUntrusted", "self-signed"),
        ("curl: (35) TLS connect error", "ModelSourceUntrusted", "TLS connect"),
        ("curl: (6) Could not resolve host: models.example", "ModelSourceUnreachable", "models.example"),
        ("curl: (7) Failed to connect to h port 443", "ModelSourceUnreachable", "Failed to connect"),
        ("curl: (28) Operation timed out", "ModelSourceUnreachable", "timed out"),
        (
            "curl: (23) Failure writing output to destination\nsh: write error: No space left on device",
            "ModelTransferOutOfSpace",
            "No space left",
        ),
        ("mkdir: can't create directory '/models/x': Permission denied", "ModelCacheNotWritable", "Permission denied"),
        ("something else entirely", "ModelTransferFailed", "something else entirely"),
        ("", "ModelTransferFailed", "CrashLoopBackOff"),
        ("ModelMadeUp: not on the list", "ModelTransferFailed", "not on the list"),
    ],
)
def test_a_download_that_fails_is_classed_by_its_last_words(words: str, reason: str, told: str) -> None:
    cause = cause_of(PodFacts(**DOWNLOADER, **CRASHED, waiting_message=words))
    assert cause is not None
    assert cause.reason == reason
    assert told in cause.message
    assert "4 restarts" in cause.message


def test_every_word_of_the_download_script_is_on_the_list() -> None:
    for reason in MODEL_TRANSFER_REASONS:
        assert transfer_failure(f"{reason}: {WHERE}: why") == (reason, f"{WHERE}: why")


@pytest.mark.parametrize(
    "pod",
    [
        PodFacts(**ENGINE),
        PodFacts(**DOWNLOADER),
        PodFacts(**ENGINE, ready=True),
        PodFacts(**ENGINE, ready=True, proof="proved"),
        PodFacts(**ENGINE, ready=True, proof="unknown"),
        PodFacts(**ENGINE, ready=True, restarts=7, exit_code=1),
        PodFacts(name="svc-1", unschedulable="0/1 nodes are available"),
    ],
)
def test_a_pod_that_serves_or_starts_has_no_cause(pod: PodFacts) -> None:
    assert cause_of(pod) is None


def test_an_image_name_that_cannot_be_read_needs_an_edit() -> None:
    invalid = cause_of(PodFacts(**ENGINE, waiting_reason="InvalidImageName"))
    missing = cause_of(PodFacts(**ENGINE, waiting_reason="ErrImagePull"))
    assert invalid is not None
    assert missing is not None
    assert (invalid.terminal, missing.terminal) == (True, False)


def test_want_of_memory_is_set_beside_the_estimate() -> None:
    memory = MemoryFacts(weights_bytes=4 << 30, cache_bytes=1 << 30, compute_bytes=512 << 20, asked_bytes=2 << 30)
    cause = cause_of(PodFacts(**ENGINE, waiting_reason="OOMKilled", oom_killed=True), memory)
    assert cause is not None
    assert "it requests 2.0 GiB; the engine is estimated to need 5.5 GiB" in cause.message


def test_the_most_telling_cause_counts_whatever_the_order_of_pods() -> None:
    crash = PodFacts(**{**ENGINE, "name": "a"}, **CRASHED)
    driver = PodFacts(**{**ENGINE, "name": "c"}, **CRASHED, waiting_message="CUDA driver version is insufficient")
    other = PodFacts(**{**ENGINE, "name": "b"}, **CRASHED, waiting_message="CUDA driver version is insufficient")
    for pods in ((crash, driver, other), (other, driver, crash)):
        worst = worst_cause(pods, None)
        assert worst is not None
        assert (worst.reason, worst.pod) == (Reason.DRIVER_TOO_OLD, "b")
    assert worst_cause((), None) is None


def test_amounts_of_memory_are_written_for_people() -> None:
    assert (gib(300 << 20), gib(1 << 30), gib(5 << 29)) == ("300 MiB", "1.0 GiB", "2.5 GiB")
