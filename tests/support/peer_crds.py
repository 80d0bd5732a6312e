"""The CRDs of other projects, such as LeaderWorkerSet and Gateway API, as these projects publish them.

They come from the projects' Go modules, through the Go module proxy or the local Go cache; this repository contains
none of them. Tests that need one are skipped where neither has it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.support import extensions, needs
from tests.support.controlplane import eventually
from tools.versions import LWS


class Module(NamedTuple):
    """One Go module in one version, with the checksum that `go.sum` files give it."""

    path: str
    version: str
    checksum: str


LWS_MODULE = Module("sigs.k8s.io/lws", f"v{LWS}", "h1:DdhJ8QabwTfWgbgaHH2gdf8twliioHaoSfmDXRYEVU0=")
GATEWAY_API = Module("sigs.k8s.io/gateway-api", "v1.5.1", "h1:RqVRIlkhLhUO8wOHKTLnTJA6o/1un4po4/6M1nRzdd0=")
INFERENCE_EXTENSION = Module(
    "sigs.k8s.io/gateway-api-inference-extension", "v1.5.0", "h1:w9Awt60cmI1vM7Y6N81h8wDCBP0WkmxpdI7GKY0v070="
)

AI_GATEWAY = Module("github.com/envoyproxy/ai-gateway", "v1.0.0", "h1:cTdSnQmtQQ2Ea5T/LLK50pIthG2SJAOxU9XPXZbtDkU=")
ENVOY_GATEWAY = Module("github.com/envoyproxy/gateway", "v1.9.1", "h1:vAVp6/AlBXJ1aOhp1mxL7fNEzVEfjADUguUhm2wzxQY=")
_AI_CRDS = "manifests/charts/ai-gateway-crds-helm/templates/aigateway.envoyproxy.io"

AI_GATEWAY_ROUTES = Kind("aigateway.envoyproxy.io/v1beta1", "AIGatewayRoute", "aigatewayroutes", True)
AI_SERVICE_BACKENDS = Kind("aigateway.envoyproxy.io/v1beta1", "AIServiceBackend", "aiservicebackends", True)
BACKEND_SECURITY_POLICIES = Kind(
    "aigateway.envoyproxy.io/v1beta1", "BackendSecurityPolicy", "backendsecuritypolicies", True
)
ENVOY_BACKENDS = Kind("gateway.envoyproxy.io/v1alpha1", "Backend", "backends", True)
BACKEND_TLS_POLICIES = Kind("gateway.networking.k8s.io/v1", "BackendTLSPolicy", "backendtlspolicies", True)

FILES: dict[Kind, tuple[Module, str]] = {
    kinds.LEADER_WORKER_SETS: (LWS_MODULE, "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    kinds.HTTP_ROUTES: (GATEWAY_API, "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    kinds.GATEWAYS: (GATEWAY_API, "config/crd/standard/gateway.networking.k8s.io_gateways.yaml"),
    BACKEND_TLS_POLICIES: (GATEWAY_API, "config/crd/standard/gateway.networking.k8s.io_backendtlspolicies.yaml"),
    AI_GATEWAY_ROUTES: (AI_GATEWAY, f"{_AI_CRDS}_aigatewayroutes.yaml"),
    AI_SERVICE_BACKENDS: (AI_GATEWAY, f"{_AI_CRDS}_aiservicebackends.yaml"),
    BACKEND_SECURITY_POLICIES: (AI_GATEWAY, f"{_AI_CRDS}_backendsecuritypolicies.yaml"),
    ENVOY_BACKENDS: (
        ENVOY_GATEWAY,
        "charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_backends.yaml",
    ),
    kinds.INFERENCE_POOLS: (
        INFERENCE_EXTENSION,
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    ),
}
ALL = (kinds.LEADER_WORKER_SETS, kinds.HTTP_ROUTES, kinds.GATEWAYS, kinds.INFERENCE_POOLS)
"""The kinds that services use."""


@functools.cache
def folder(module: Module) -> Path:
    """Return the folder of an unpacked module; skip the test where the module is not available."""
    needs.require("go")
    go = shutil.which("go") or "go"
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    answer = subprocess.run(
        [go, "mod", "download", "-json", f"{module.path}@{module.version}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
        # Outside any Go module, so that only the requested one is resolved.
        cwd=tempfile.gettempdir(),
    )
    told = json.loads(answer.stdout) if answer.stdout.strip() else {}
    if "Dir" not in told:
        pytest.skip(f"{module.path}@{module.version} cannot be had: {told.get('Error') or answer.stderr.strip()}")
    assert told["Sum"] == module.checksum, f"{module.path}@{module.version} is not what these tests were written for"
    return Path(told["Dir"])


def crd(kind: Kind) -> Json:
    """Return the CRD of a kind."""
    return copy.deepcopy(_read(kind))


@functools.cache
def _read(kind: Kind) -> Json:
    module, file = FILES[kind]
    # The CRDs have thousands of lines; the loader written in C reads them in less than a second.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: Json = yaml.load((folder(module) / file).read_text(), Loader=loader)
    return document


@contextlib.contextmanager
def installed(client: KubeClient, wanted: Iterable[Kind] = ALL) -> Iterator[frozenset[str]]:
    """Serve these kinds while the block lasts; yields their names in the form of `RenderOptions.installed`."""
    served = tuple(wanted)
    for kind in served:
        client.apply(kinds.CRDS, None, crd(kind), field_manager="tests", force=True)
    for kind in served:
        eventually(lambda kind=kind: extensions.is_served(client, kind), what=f"{kind.kind} to be served")  # type: ignore[misc]
    try:
        yield frozenset(kind.full_name for kind in served)
    finally:
        remove(client, served)


def remove(client: KubeClient, wanted: Iterable[Kind]) -> None:
    """Delete the CRDs with all their objects, and wait until they are gone."""
    for kind in wanted:
        with contextlib.suppress(NotFound):
            client.delete(kinds.CRDS, None, f"{kind.plural}.{kind.group}")
    for kind in wanted:
        # A test that installs the kind next must not find a CRD that is being deleted.
        eventually(lambda kind=kind: extensions.is_gone(client, kind), what=f"{kind.kind} to be gone")  # type: ignore[misc]
