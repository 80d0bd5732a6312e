"""Plans of processes on hosts: the effect of the newer fields, and services that no host can run."""

from __future__ import annotations

from typing import Any

import pytest

from agent.contract import IdleQuestion, SecretReference
from agent.processes.adapters import adapters_of
from components.host_plan import host_files, process_plan
from components.host_program import host_needs
from components.render import RenderOptions, render
from program.desired.adapter import AdapterFile
from program.desired.engines import Generic, LlamaCpp, Ollama, Omlx, SecretKey, Sglang, SpeculativeDecoding, Vllm
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, Gpu, ModelFormat, ModelSource, SourceKind
from program.desired.service import HostPlacement, PodSettings
from program.dialects.llmkube.parse.source import parse_source
from program.runtimes.ollama import ollama_name
from tests.support.builders import claim_model, http_model, repository_model, service


def plan(**fields: Any) -> Any:
    return process_plan(service(**{"host_placement": HostPlacement(host="box"), **fields}), "box")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({}, "/v1/chat/completions"),
        ({"mode": "embedding"}, "/v1/embeddings"),
        ({"mode": "rerank"}, "/v1/rerank"),
        ({"completion_check": False}, None),
        ({"engine": LlamaCpp(extra_args=("--embeddings",))}, None),
        ({"engine": LlamaCpp(extra_args=("--embeddings",)), "mode": "embedding"}, "/v1/embeddings"),
    ],
)
def test_proof_is_asked_for_where_the_mode_serves(fields: Any, path: str | None) -> None:
    assert plan(**fields).completion_path == path


def test_a_mode_reaches_the_process() -> None:
    argv = plan(mode="rerank").argv
    assert argv[-7:] == ("--reranking", "--embedding", "--pooling", "rank", "--cache-ram", "0", "--metrics")


def test_the_hubs_token_of_an_engine_reaches_the_process_as_a_reference() -> None:
    made = plan(engine=Vllm(hf_token=SecretKey(name="hub", key="token")), model=repository_model())
    assert made.secret_env == {"HF_TOKEN": SecretReference(secret="hub", key="token")}


def test_drafting_without_a_second_file_reaches_the_process() -> None:
    argv = plan(engine=LlamaCpp(speculative=SpeculativeDecoding(type="ngram-mod"))).argv
    assert argv[-3:] == ("--spec-type", "ngram-mod", "--metrics")


def test_one_file_of_a_repository_is_fetched_by_its_url() -> None:
    model = repository_model("v2", files=("q4/m.gguf",), file_name="q4/m.gguf", cache_key="k")
    made = plan(model=model)
    assert made.file.source == "https://huggingface.co/org/repo/resolve/v2/q4/m.gguf"
    assert (made.file.file_name, made.file.cache_key) == ("m.gguf", "k")
    assert made.argv[:3] == ("llama-server", "--model", "{model}")


def test_a_repository_as_a_whole_is_the_engines_business() -> None:
    made = plan(model=repository_model())
    assert made.file is None
    assert made.argv[1:3] == ("--hf-repo", "org/repo")


S3 = ModelSource(kind=SourceKind.S3, address="s3://b/m.gguf", bucket="b", path="m.gguf")
DRAFTING = LlamaCpp(speculative=SpeculativeDecoding(type="draft-simple"))


def sources(made: Any) -> dict[str, tuple[str, str]]:
    """Return source and file name of each file of a plan, by its name in the plan."""
    return {name: (each.source, each.file_name) for name, each in {"model": made.file, **(made.files or {})}.items()}


def test_a_set_keeps_its_folders_and_names_its_projector() -> None:
    model = repository_model(files=("q/a-1.gguf", "q/a-2.gguf"), mmproj="p.gguf", sha256="ab", cache_key="k")
    made = plan(model=model)
    base = "https://huggingface.co/org/repo/resolve/main/"
    assert sources(made) == {
        "model": (f"{base}q/a-1.gguf", "q/a-1.gguf"),
        "file-1": (f"{base}q/a-2.gguf", "q/a-2.gguf"),
        "mmproj": (f"{base}p.gguf", "p.gguf"),
    }
    assert (made.file.sha256, made.files["mmproj"].sha256, made.file.directory) == ("ab", None, None)
    assert "{mmproj}" in made.argv


def test_s3_is_named_by_bucket_and_key() -> None:
    assert sources(plan(model=http_model(source=S3))) == {"model": ("s3://b/m.gguf", "Base.gguf")}
    below = ModelSource(kind=SourceKind.S3, address="s3://b/p", bucket="b", path="p")
    made = plan(model=http_model(source=below, files=("a.gguf", "b.gguf"), file_name="a.gguf"))
    assert sources(made) == {"model": ("s3://b/p/a.gguf", "a.gguf"), "file-1": ("s3://b/p/b.gguf", "b.gguf")}


def test_a_draft_is_a_file_of_its_own_or_one_of_the_set() -> None:
    small = http_model(name="small", cache_key="d", file_name="small.gguf")
    made = plan(engine=DRAFTING, draft=small)
    assert sources(made)["draft"] == ("https://example.com/model.gguf", "small.gguf")
    assert made.files["draft"].cache_key == "d"
    assert made.argv[-3:] == ("-md", "{draft}", "--metrics")
    own = LlamaCpp(speculative=SpeculativeDecoding(type="draft-simple", draft_path="d.gguf"))
    made = plan(engine=own, model=repository_model(files=("m.gguf", "d.gguf"), cache_key="k"))
    assert set(made.files) == {"draft"}
    assert made.files["draft"].file_name == "d.gguf"


def test_formats_of_directories_are_a_directory() -> None:
    mlx = repository_model("v1", format=ModelFormat.MLX)
    whole = host_files(service(model=mlx))["file"]
    assert whole is not None
    assert (whole.source, whole.directory, whole.file_name) == ("hf://org/repo@v1", True, "repo")
    listed = host_files(service(model=mlx.model_copy(update={"files": ("config.json", "w/model.safetensors")})))
    assert listed["file"] is not None
    assert (listed["file"].file_name, listed["file"].directory) == ("config.json", True)
    assert listed["files"] is not None
    assert listed["files"]["file-1"].file_name == "w/model.safetensors"


@pytest.mark.parametrize("fields", [{"model": claim_model()}, {"engine": DRAFTING, "draft": claim_model()}])
def test_weights_on_a_claim_are_refused(fields: Any) -> None:
    with pytest.raises(SpecInvalid, match="PersistentVolumeClaim"):
        plan(**fields)


@pytest.mark.parametrize("fields", [{"suspended": True}, {"replicas": 0}])
def test_a_stopped_service_has_no_process(fields: dict[str, Any]) -> None:
    placed = service(host_placement=HostPlacement(host="box"))
    assert [part.part for part in render(placed, RenderOptions()).objects] == ["process"]
    assert render(placed.model_copy(update=fields), RenderOptions()).objects == ()


def test_other_engines_are_refused() -> None:
    with pytest.raises(SpecInvalid, match="sglang"):
        plan(engine=Sglang())


# --- engines other than llama.cpp -------------------------------------------------------------------------------------


def test_vllm_listens_where_the_host_says_and_fetches_a_repository_itself() -> None:
    made = plan(engine=Vllm(max_model_len=4096), model=repository_model("v2"), bind_address="::")
    assert made.argv[:3] == ("vllm", "serve", "org/repo")
    assert made.argv[3:7] == ("--port", "{port}", "--host", "{host}")
    assert made.argv[7:] == ("--revision", "v2", "--max-model-len", "4096")
    assert (made.runtime, made.file, made.health_path, made.daemon_model) == ("vllm", None, "/health", None)
    assert made.completion_path == "/v1/chat/completions"


def test_a_model_of_ollama_is_pulled_by_ollama() -> None:
    made = plan(engine=Ollama())
    assert made.argv == ("ollama", "serve")
    assert (made.runtime, made.file, made.files) == ("ollama", None, None)
    assert (made.daemon_model, made.health_path) == (http_model().name, "/api/version")


def of(source: str, **fields: Any) -> DesiredModel:
    return DesiredModel(name="chat.v1", source=parse_source(source), **fields)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (of("library/llama3.2"), "llama3.2"),
        (of("hf://library/llama3.2@3b"), "llama3.2:3b"),
        (of("hf://org/repo-GGUF"), "hf.co/org/repo-GGUF"),
        (of("org/repo-GGUF", quantization="Q4_K_M"), "hf.co/org/repo-GGUF:Q4_K_M"),
        (of("hf://org/repo", files=("q4/m.gguf",)), "hf.co/org/repo:m.gguf"),
        (of("https://huggingface.co/org/repo/resolve/main/m-Q8_0.gguf"), "hf.co/org/repo:m-Q8_0.gguf"),
        (of("https://example.com/m.gguf"), "chat.v1"),
    ],
)
def test_ollama_is_asked_for_a_model_by_a_name_that_it_knows(model: DesiredModel, name: str) -> None:
    assert ollama_name(model) == name


def test_a_model_of_omlx_is_a_directory_and_the_knobs_are_the_daemons() -> None:
    knobs = Omlx(turbo_quant_bits=3, paged_ssd_cache_dir="/c", hot_cache_max_size="8GB", paged_ssd_cache_max_size="9GB")
    made = plan(engine=knobs, model=of("/models/Qwen-4bit", format=ModelFormat.MLX))
    assert made.argv[:8] == ("omlx", "serve", "--model-dir", "{models}", "--port", "{port}", "--host", "{host}")
    assert " ".join(made.argv[8:]) == (
        "--kv-cache-quant 3 --paged-ssd-cache-dir /c --hot-cache-max-size 8GB --paged-ssd-cache-max-size 9GB"
    )
    assert (made.daemon_model, made.file.source) == ("Qwen-4bit", "/models/Qwen-4bit")
    hub = plan(engine=Omlx(), model=of("hf://mlx-community/Qwen-4bit", format=ModelFormat.MLX))
    assert (hub.daemon_model, hub.file.directory, len(hub.argv)) == ("Qwen-4bit", True, 8)


def test_a_command_that_tells_whether_it_is_idle_is_asked() -> None:
    engine = Generic(args=("--port", "{port}"), idle_path="/idle")
    assert plan(engine=engine, command=("serve",)).idle == IdleQuestion(path="/idle", kind="status")
    assert plan(engine=Generic(), command=("serve",)).idle is None


def test_what_is_not_asked_for_is_not_written() -> None:
    (process,) = render(service(host_placement=HostPlacement(host="box")), RenderOptions()).objects
    assert not {"idle", "daemonModel", "metricsPath", "drainTimeoutS"} & set(process.manifest["spec"])


def test_fields_that_llmkubes_agent_leaves_out_reach_the_process() -> None:
    """Defect A11 of LLMKube: `layers: -1`, a reasoning budget of 0, drafts, projectors and variables."""
    settings = LlamaCpp(reasoning_budget=0, speculative=SpeculativeDecoding(type="draft-simple", draft_path="d.gguf"))
    made = plan(
        engine=settings,
        model=repository_model(
            files=("m.gguf", "d.gguf", "p.gguf"), mmproj="p.gguf", accelerator="metal", file_name="m.gguf"
        ),
        gpu=Gpu(count=1, layers=-1),
        pod=PodSettings(env=({"name": "GGML_METAL_N_CB", "value": "2"},)),
    )
    flags = dict(zip(made.argv[1::1], made.argv[2::1], strict=False))
    assert (flags["--n-gpu-layers"], flags["--reasoning-budget"], flags["--ctx-size"]) == ("99", "0", "2048")
    assert (flags["-md"], flags["--mmproj"], flags["--spec-type"]) == ("{draft}", "{mmproj}", "draft-simple")
    assert {"draft", "mmproj"} <= set(made.files)
    assert made.env == {"GGML_METAL_N_CB": "2"}
    assert {"--mlock", "--flash-attn"} <= set(made.argv)


def adapters() -> tuple[AdapterFile, ...]:
    remote = http_model(sha256="a" * 64, cache_key="")
    mounted = DesiredModel(
        name="b", source=ModelSource(kind=SourceKind.FILE, address="/srv/b.gguf", path="/srv/b.gguf")
    )
    return AdapterFile(name="a", source=remote), AdapterFile(name="b", source=mounted)


def test_adapters_are_files_of_the_plan_that_no_request_gets_unasked() -> None:
    both = adapters()
    built = plan(adapters=both)
    assert [built.argv[at + 1] for at, word in enumerate(built.argv) if word == "--lora-scaled"] == [
        f"{{{each.token}}}:0" for each in both
    ]
    assert "--cache-ram 0" in " ".join(built.argv)
    assert adapters_of(built.argv) == tuple(each.token for each in both)
    first, second = (built.files[each.token] for each in both)
    assert (first.source, first.file_name, first.sha256) == ("https://example.com/model.gguf", "a.gguf", "a" * 64)
    assert second.source == "/srv/b.gguf"
    assert not host_needs(service(host_placement=HostPlacement(host="box"), adapters=both))


def test_adapters_of_the_users_arguments_are_numbered_after_those_of_the_plan() -> None:
    extra = ("--cache-ram", "0", "--lora", "/x.gguf,/y.gguf", "--lora-scaled=/z.gguf:1")
    built = plan(adapters=adapters()[:1], engine=LlamaCpp(extra_args=extra))
    assert adapters_of(built.argv) == (adapters()[0].token, "/x.gguf", "/y.gguf", "/z.gguf:1")
    assert built.argv.count("--cache-ram") == 1


def test_vllm_on_a_host_gets_adapters_as_directories_by_its_arguments() -> None:
    hub = ModelSource(kind=SourceKind.REPOSITORY, address="hf://org/sql", repository="org/sql")
    files = ("adapter_model.safetensors", "adapter_config.json")
    fetched = AdapterFile(name="sql", source=DesiredModel(name="sql", source=hub, files=files, sha256="a" * 64))
    there = AdapterFile(
        name="b",
        source=DesiredModel(name="b", source=ModelSource(kind=SourceKind.FILE, address="/srv/b", path="/srv/b")),
    )
    values = {"engine": Vllm(), "adapters": (fetched, there)}
    built = plan(**values)
    at = built.argv.index("--lora-modules")
    assert built.argv[at - 1 :] == (
        *("--enable-lora", "--lora-modules"),
        *(f"sql={{{fetched.token}}}", f"b={{{there.token}}}"),
    )
    assert adapters_of(built.argv) == (fetched.token, there.token)
    first, second = built.files[fetched.token], built.files[f"{fetched.token}-file-1"]
    assert (first.file_name, first.directory, first.sha256) == (files[0], True, "a" * 64)
    assert (second.file_name, second.cache_key, second.sha256) == (files[1], first.cache_key, None)
    assert built.files[there.token].source == "/srv/b"
    assert not host_needs(service(host_placement=HostPlacement(host="box"), **values))
    enabled = plan(engine=Vllm(extra_args=("--enable-lora",)), adapters=(there,))
    assert enabled.argv.count("--enable-lora") == 1


@pytest.mark.parametrize("module", ["sql=/etc/secret", "sql={model}/../x", '{"name":"a","path":"/x"}', "sql", "=/x"])
def test_modules_of_the_users_arguments_are_checked(module: str) -> None:
    engine = Vllm(extra_args=("--lora-modules", module))
    assert host_needs(service(host_placement=HostPlacement(host="box"), engine=engine))


def test_a_plan_without_a_model_file_has_its_adapters() -> None:
    assert list(plan(adapters=adapters(), skip_model_init=True).files) == [each.token for each in adapters()]
