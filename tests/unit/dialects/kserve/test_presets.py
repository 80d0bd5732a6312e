"""The presets. bash runs their start script with a stub of vLLM, which must get the arguments that the peer's did."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from kubeapi.json_types import Json
from program.dialects.kserve import naming, presets
from program.dialects.kserve.configuration.combine import combined
from program.dialects.kserve.presets.__main__ import main as print_presets
from tests.unit.dialects.kserve.combining import Recorded, cluster, main, recorded, service, settings_map

pytestmark = pytest.mark.slow

VERSION = "0.23.0"
LEADER = "192.0.2.10"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `vllm` that prints its arguments and its environment."""
    folder = tmp_path_factory.mktemp("bin")
    stub = folder / "vllm"
    stub.write_text(
        "#!/bin/bash\n"
        'if [ "$*" = --version ]; then echo "$STUB_VERSION"; exit; fi\n'
        'printf \'%s\\0\' "$#" "$@"\n'
        "env -0\n"
    )
    stub.chmod(0o755)
    python = folder / "python3"
    python.symlink_to(sys.executable)
    return folder


@dataclass(frozen=True)
class Started:
    """The results of a start script."""

    code: int
    argv: list[str]
    """The arguments of vLLM; empty if the script did not start it."""
    env: dict[str, str]
    said: str


def start(container: Json, path: Path, **env: str) -> Started:
    """Run a container's command as Kubernetes does, with the container's environment only."""
    named = {entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry}
    assert container["command"][0] == "/bin/bash"
    own = {"PATH": f"{path}:{os.defpath}", "LWS_LEADER_ADDRESS": LEADER, "LWS_WORKER_INDEX": "1"}
    done = subprocess.run(
        ["bash", *container["command"][1:], *container.get("args", ())],
        env={**own, "VLLM_VERSION": VERSION, **named, **env},
        capture_output=True,
        timeout=60,
        check=False,
    )
    count, *rest = done.stdout.decode().split("\0") if done.stdout else ["0"]
    variables = dict(entry.split("=", 1) for entry in rest[int(count) :] if entry)
    return Started(done.returncode, rest[: int(count)], variables, done.stderr.decode())


def argv(container: Json, path: Path, **env: str) -> list[str]:
    """Return the arguments with which a container starts vLLM; the script must not fail or print to stderr."""
    done = start(container, path, **env)
    assert (done.code, done.said) == (0, "")
    return done.argv


def servers(case: Recorded) -> list[tuple[str, Json, Json]]:
    """Return the name, the container and the recorded container of each server whose arguments were recorded."""
    name = case.cr["metadata"]["name"]
    spec = combined(case.cr, case.look).spec
    pairs = []
    for workload, single, group in (
        (spec, naming.workload(name), naming.group(name)),
        (spec.get("prefill", {}), naming.prefill(name), naming.prefill_group(name)),
    ):
        for made in case.made:
            if made["metadata"]["name"] == single and made["kind"] == "Deployment":
                pairs.append((single, workload["template"], made["spec"]["template"]["spec"]))
            elif made["metadata"]["name"] == group and made["kind"] == "LeaderWorkerSet":
                both = made["spec"]["leaderWorkerTemplate"]
                pairs.append((f"{group} leader", workload["template"], both["leaderTemplate"]["spec"]))
                pairs.append((f"{group} worker", workload["worker"], both["workerTemplate"]["spec"]))
    return [(what, main(ours), main(theirs)) for what, ours, theirs in pairs if "x-vllm-argv" in main(theirs)]


SINGLE = [case for case in recorded() if case.status.get("appliedConfigs")]
EVALUATED_TWICE = {"013-json", "013-spacy", "013-dollar", "110-ku"}
"""The peer's script evaluates users' words in a shell. `test_words_reach_vllm_as_they_are` tests such words."""
SIZES_LOST = {"017-dp", "017-ep", "017-pp", "106-pkv", "063-bm", "063-bn"}
"""The peer's script loses sizes, or the model's name. `test_sizes_on_one_node` tests the sizes."""


@pytest.mark.parametrize("case", [c for c in SINGLE if str(c) not in EVALUATED_TWICE | SIZES_LOST], ids=str)
def test_vllm_is_started_as_recorded(case: Recorded, path: Path) -> None:
    for what, ours, theirs in servers(case):
        # The recorded arguments come from the user and from the controller. The script passes on both.
        container = {**ours, "args": [word.strip("'") for word in theirs.get("args", ())]}
        assert argv(container, path) == theirs["x-vllm-argv"], what


def test_the_vectors_hold_many_start_scripts() -> None:
    assert sum(len(servers(case)) for case in SINGLE) > 60


BEGIN = ["serve", "/mnt/models", "--served-model-name", "chat", "publishers/team/models/chat", "--port", "8000"]
LOGS = ["--disable-access-log-for-endpoints", "/health,/metrics,/ping"]


def started(spec: Json, path: Path, **env: str) -> list[str]:
    return argv(main(combined(service(spec), cluster()).spec["template"]), path, **env)


@pytest.mark.parametrize(
    "word",
    ['{"temperature": 0.5}', "/a b.jinja", '["*"]', "$HOME", "`id`", "$(id)", "*", "a'b", 'a"b', "\\", "", "é", "a\nb"],
)
def test_words_reach_vllm_as_they_are(word: str, path: Path) -> None:
    args = ["--x", word]
    assert started({"template": {"containers": [{"name": "main", "args": args}]}}, path)[-2:] == args
    if word:
        names = started({"model": {"uri": "hf://a/b", "name": word}}, path)[3:5]
        assert names == [word, f"publishers/team/models/{word}"]


def test_kubernetes_expands_nothing_in_a_model_name() -> None:
    """The kubelet replaces `$(NAME)` and `$$` in commands before it starts a shell."""
    spec = combined(service({"model": {"uri": "hf://a/b", "name": "$(HOME)$$x"}}), cluster()).spec
    script = main(spec["template"])["command"][2]
    assert "$(HOME)" not in script
    assert "$$" not in script


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--a --b=c", ["--a", "--b=c"]),
        ("  --a  \n --b ", ["--a", "--b"]),
        ("--c '{\"a\": 1}'", ["--c", '{"a": 1}']),
        ("--x $(touch /tmp/owned) `id` $HOME *", ["--x", "$(touch", "/tmp/owned)", "`id`", "$HOME", "*"]),
    ],
)
def test_additional_args_are_split_but_never_run(more: str, words: list[str], path: Path) -> None:
    assert started({}, path, VLLM_ADDITIONAL_ARGS=more)[len(BEGIN + LOGS) + 2 :] == words


def test_additional_args_that_cannot_be_split_stop_the_pod(path: Path) -> None:
    container = main(combined(service(), cluster()).spec["template"])
    done = start(container, path, VLLM_ADDITIONAL_ARGS="--a 'b")
    assert done.code == 2
    assert "VLLM_ADDITIONAL_ARGS" in done.said
    assert not done.argv


@pytest.mark.parametrize(
    ("parallelism", "flags"),
    [
        ({"tensor": 4}, ["--tensor-parallel-size", "4"]),
        ({"pipeline": 2}, ["--pipeline-parallel-size", "2"]),
        ({"data": 2, "dataLocal": 2, "expert": True}, ["--enable-expert-parallel", "--data-parallel-size", "2"]),
        (
            {"tensor": 2, "data": 4, "dataLocal": 4, "dataRPCPort": 6000},
            ["--tensor-parallel-size", "2", "--data-parallel-size", "4", "--data-parallel-rpc-port", "6000"],
        ),
        ({"expert": False}, []),
        ({}, []),
    ],
)
def test_sizes_on_one_node(parallelism: Json, flags: list[str], path: Path) -> None:
    assert started({"parallelism": parallelism}, path) == [*BEGIN, *LOGS, "--shutdown-timeout", "40", *flags]


def test_pipeline_groups_are_told_who_they_are(path: Path) -> None:
    worker = {"containers": []}
    spec = combined(service({"parallelism": {"pipeline": 2, "tensor": 8}, "worker": worker}), cluster()).spec
    size = ["--pipeline-parallel-size", "2", "--nnodes", "2", "--node-rank"]
    end = [*LOGS, "--shutdown-timeout", "40", "--tensor-parallel-size", "8"]
    assert argv(main(spec["template"]), path) == [*BEGIN, *size, "0", "--master-addr", LEADER, *end]
    assert argv(main(spec["worker"]), path) == [*BEGIN, *size, "1", "--master-addr", LEADER, "--headless", *end]


def test_a_leader_without_an_address_stops_the_pod(path: Path) -> None:
    spec = combined(service({"parallelism": {"pipeline": 2}, "worker": {"containers": []}}), cluster()).spec
    env = {"LWS_LEADER_ADDRESS": "no-such-host.invalid", "DP_ADDRESS_RESOLVE_ATTEMPTS": "1"}
    done = start(main(spec["worker"]), path, **env)
    assert done.code == 1
    assert "no-such-host.invalid has no address" in done.said


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.15.2", ["--disable-uvicorn-access-log"]),
        ("0.16.0", LOGS),
        ("0.17.9", LOGS),
        ("0.18.0", [*LOGS, "--shutdown-timeout", "40"]),
        ("vllm 0.22.1.dev3+gabc", [*LOGS, "--shutdown-timeout", "40", "--kv-transfer-config"]),
        ("1.0", [*LOGS, "--shutdown-timeout", "40", "--kv-transfer-config"]),
    ],
)
def test_options_follow_the_version_of_vllm(version: str, expected: list[str], path: Path) -> None:
    spec = combined(service({"kvCacheOffloading": {"cpu": "1Gi"}}), cluster()).spec
    for env in ({"VLLM_VERSION": "", "STUB_VERSION": version}, {"VLLM_VERSION": version, "STUB_VERSION": "9.9"}):
        done = start(main(spec["template"]), path, **env)
        assert done.argv[len(BEGIN) : len(BEGIN) + len(expected)] == expected
        assert ("kvCacheOffloading has no effect" in done.said) is ("--kv-transfer-config" not in expected)


def test_an_unknown_version_is_said(path: Path) -> None:
    done = start(main(combined(service(), cluster()).spec["template"]), path, VLLM_VERSION="", STUB_VERSION="")
    assert done.argv == [*BEGIN, "--disable-uvicorn-access-log"]
    assert "VLLM_VERSION" in done.said


def test_own_kv_transfer_config_goes_before(path: Path) -> None:
    spec = {"kvCacheOffloading": {"cpu": "1Gi"}}
    for flag in ("--kv-transfer-config", "--kv_transfer_config=x"):
        assert "OffloadingConnector" not in str(started(spec, path, VLLM_ADDITIONAL_ARGS=flag))
    assert "OffloadingConnector" in str(started(spec, path))


def card(root: Path, name: str, state: str, gids: dict[int, tuple[str, str]]) -> None:
    port = root / "class" / "infiniband" / name / "ports" / "1"
    (port / "gid_attrs" / "types").mkdir(parents=True)
    (port / "gids").mkdir()
    (port / "state").write_text(state)
    for index, (address, kind) in gids.items():
        (port / "gids" / str(index)).write_text(address)
        (port / "gid_attrs" / "types" / str(index)).write_text(kind)


V4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
V6 = "fe80:0000:0000:0000:0000:0000:0000:0001"


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    gids = {0: (V6, "IB/RoCE v1"), 1: (V6, "RoCE v2"), 2: (V4, "IB/RoCE v1"), 3: (V4, "RoCE v2"), 4: (V4, "RoCE v2")}
    card(tmp_path, "mlx5_0", "4: ACTIVE", gids)
    card(tmp_path, "mlx5_1", "1: DOWN", gids)
    card(tmp_path, "mlx5_2", "4: ACTIVE", gids)
    return tmp_path


def network(path: Path, cards: Path, **env: str) -> dict[str, str]:
    container = main(combined(service(), cluster()).spec["template"])
    done = start(container, path, KSERVE_INFER_SYSFS=str(cards), **env)
    return {name: value for name, value in done.env.items() if name.startswith(("NCCL_", "NVSHMEM_", "UCX_"))}


def test_fast_network_cards_are_found(path: Path, cards: Path) -> None:
    assert network(path, cards) == {}
    both = "mlx5_0:1,mlx5_2:1"
    found = network(path, cards, KSERVE_INFER_ROCE="true")
    assert found == {
        "NCCL_IB_HCA": both,
        "NVSHMEM_HCA_LIST": both,
        "UCX_NET_DEVICES": both,
        "NCCL_IB_GID_INDEX": "3",
        "NVSHMEM_IB_GID_INDEX": "3",
        "UCX_IB_GID_INDEX": "3",
    }


def test_what_the_environment_says_of_cards_goes_before(path: Path, cards: Path) -> None:
    env = {"NCCL_IB_HCA": "mlx5_9", "UCX_IB_GID_INDEX": "7", "KSERVE_INFER_IB_GID_INDEX_GREP": " 4 .*RoCE v2"}
    found = network(path, cards, KSERVE_INFER_ROCE="true", **env)
    assert found["NCCL_IB_HCA"] == "mlx5_9"
    assert found["UCX_IB_GID_INDEX"] == "7"
    assert found["NCCL_IB_GID_INDEX"] == "4"
    assert found["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_2:1"


def test_a_node_without_such_cards_serves_all_the_same(path: Path, tmp_path: Path) -> None:
    container = main(combined(service(), cluster()).spec["template"])
    done = start(container, path, KSERVE_INFER_SYSFS=str(tmp_path), KSERVE_INFER_ROCE="true")
    assert done.argv[0] == "serve"
    assert "no mlx5 port is active" in done.said


DATA_PARALLEL: Json = {"parallelism": {"data": 4, "dataLocal": 2}, "worker": {"containers": []}}


def everything() -> list[Json]:
    """Return services that together use every preset."""
    router: Json = {"scheduler": {"tokenizer": {}}, "route": {}, "gateway": {}}
    predicting = {"scheduler": {"config": {"inline": {"plugins": [{"type": "predicted-latency-producer"}]}}}}
    data = DATA_PARALLEL
    pipeline: Json = {"parallelism": {"pipeline": 2}, "worker": {"containers": []}}
    return [
        service({"router": router, "tracing": {}}),
        service({"router": predicting, **data}),
        service(pipeline),
        service({"prefill": {}}),
        service({**data, "prefill": data}),
        service({**pipeline, "prefill": pipeline}),
    ]


@pytest.mark.parametrize("tls", [False, True])
def test_every_preset_renders_whole(tls: bool) -> None:
    look = cluster(settings_map(ingress={"enableLLMInferenceServiceTLS": tls}))
    used = set()
    for cr in everything():
        done = combined(cr, look)
        used |= {config.name for config in done.applied}
        text = json.dumps(done.spec)
        assert "{{" not in text.replace("printf `", "")
        assert "@" not in text.replace("[@]", "").replace("@sha256:", "").replace("$@", "")
        assert ("HTTPS" in text) is tls
        assert '""' not in text.replace('"group": ""', "")
    assert used == set(presets.names())


def test_presets_are_what_they_are_called() -> None:
    for name in presets.names():
        document = presets.preset(name)
        assert document is not None
        assert document["metadata"] == {"name": name}
        assert document["kind"] == "LLMInferenceServiceConfig"
    assert presets.preset("kserve-config-llm-nothing") is None
    assert presets.preset("pod-vllm") is None


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_can_be_printed_and_applied(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_presets([name]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == presets.preset(name)


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_presets([]) == 0
    assert capsys.readouterr().out.split() == list(presets.names())
    assert print_presets(["nothing"]) == 2
    assert "there is no preset `nothing`" in capsys.readouterr().err


def test_the_guide_names_what_the_script_reads() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "how-to" / "kserve-presets.md").read_text(encoding="utf-8")
    script = main(combined(service(DATA_PARALLEL), cluster()).spec["template"])["command"][2]
    named = set(re.findall(r"^\| `([A-Z_]+)(?:: [^`]*)?` \|", guide, re.MULTILINE))
    read = set(re.findall(r"\$\{((?:VLLM|DP|KSERVE)_[A-Z_]+)", script))
    assert named == read - {"KSERVE_INFER_SYSFS"}
    for name in presets.names():
        assert name.removeprefix(presets.PREFIX) in guide or name.startswith(
            (f"{presets.PREFIX}decode-", f"{presets.PREFIX}prefill-")
        )
