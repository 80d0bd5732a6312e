"""Which settings of a service on a host are always allowed, and which ones the host's owner must allow."""

from __future__ import annotations

from typing import Any

import pytest

from agent.contract import ProcessPlan
from program.runtimes.host_rules import DEFAULT, UNRESTRICTED, Allowance, allowance_of, needs_of, refusal

LLAMA = ("llama-server", "--model", "{model}", "--port", "{port}", "--host", "{host}", "--ctx-size", "2048")
VLLM = ("vllm", "serve", "{model}", "--port", "{port}", "--host", "{host}")
OMLX = ("omlx", "serve", "--model-dir", "{models}", "--port", "{port}", "--host", "{host}")
OLLAMA = ("ollama", "serve")
PROGRAMS = {"llamacpp": LLAMA, "vllm": VLLM, "omlx": OMLX, "ollama": OLLAMA}


def plan(*more: str, runtime: str = "llamacpp", **changes: Any) -> ProcessPlan:
    values = {"host": "mac", "service": "s", "service_name": "s", "runtime": runtime}
    return ProcessPlan.model_validate({**values, "argv": (*PROGRAMS.get(runtime, ()), *more), **changes})


def asked(made: ProcessPlan) -> list[str]:
    return [str(need) for need in needs_of(made)]


@pytest.mark.parametrize("runtime", PROGRAMS)
def test_what_herdsman_itself_starts_needs_nothing(runtime: str) -> None:
    assert asked(plan(runtime=runtime)) == []


@pytest.mark.parametrize(
    ("arguments", "need"),
    [
        (("--tools", "all"), "flag `--tools`"),
        (("--tools=all",), "flag `--tools`"),
        (("--tool", "all"), "flag `--tool`"),
        (("--mcp-servers-json", '{"mcpServers":{}}'), "flag `--mcp-servers-json`"),
        (("--mcp-servers-config", "/tmp/x"), "flag `--mcp-servers-config`"),
        (("--tools-runtime", "ssh:me@evil"), "flag `--tools-runtime`"),
        (("-ag",), "flag `-ag`"),
        (("--agent",), "flag `--agent`"),
        (("--webui-mcp-proxy",), "flag `--webui-mcp-proxy`"),
        (("--path", "/home/me"), "flag `--path`"),
        (("--chat-template-file", "/etc/passwd"), "flag `--chat-template-file`"),
        (("--log-file", "/home/me/.bashrc"), "flag `--log-file`"),
        (("--slot-save-path", "/"), "flag `--slot-save-path`"),
        (("--log-prompts-dir", "/"), "flag `--log-prompts-dir`"),
        (("--media-path", "/"), "flag `--media-path`"),
        (("--grammar-file", "/etc/passwd"), "flag `--grammar-file`"),
        (("-jf", "/etc/passwd"), "flag `-jf`"),
        (("--lookup-cache-dynamic", "/x"), "flag `--lookup-cache-dynamic`"),
        (("--video-ffmpeg-dir", "/tmp/evil"), "flag `--video-ffmpeg-dir`"),
        (("--models-dir", "/"), "flag `--models-dir`"),
        (("--api-key-file", "/x"), "flag `--api-key-file`"),
        (("--ssl-key-file", "/x"), "flag `--ssl-key-file`"),
        (("--host", "0.0.0.0"), "flag `--host`"),
        (("--host=0.0.0.0",), "flag `--host`"),
        (("--port", "22"), "flag `--port`"),
        (("--reuse-port",), "flag `--reuse-port`"),
        (("--mmproj-url", "http://169.254.169.254/"), "flag `--mmproj-url`"),
        (("-mmu", "http://169.254.169.254/"), "flag `-mmu`"),
        (("--model-url", "http://10.0.0.1/"), "flag `--model-url`"),
        (("-dr", "evil/x"), "flag `-dr`"),
        (("-hft", "token"), "flag `-hft`"),
        (("--rpc", "10.0.0.1:50052"), "flag `--rpc`"),
        (("--prio", "3"), "flag `--prio`"),
        (("-m", "/etc/shadow"), "path `/etc/shadow` of `-m`"),
        (("--model=/etc/shadow",), "path `/etc/shadow` of `--model`"),
        (("-m", "{model}/../../../etc/shadow"), "path `{model}/../../../etc/shadow` of `-m`"),
        (("--mmproj", "/etc/shadow"), "path `/etc/shadow` of `--mmproj`"),
        (("-md", "secrets.gguf"), "path `secrets.gguf` of `-md`"),
        (("--lora", "{model},/etc/shadow"), "path `/etc/shadow` of `--lora`"),
        (("--lora-scaled", "/etc/shadow:0"), "path `/etc/shadow` of `--lora-scaled`"),
        (("--lora-scaled", "{lora-a}:0,/etc/shadow:1"), "path `/etc/shadow` of `--lora-scaled`"),
        (("--lora-scaled", "{model}/../x:0"), "path `{model}/../x` of `--lora-scaled`"),
        (("-hf", "/etc/x"), "flag `-hf`"),
        (("-hff", "../../etc/x"), "path `../../etc/x` of `-hff`"),
        # A build in which a flag has no value would read the next word as a flag.
        (("--flash-attn", "--tools"), "flag `--flash-attn`"),
        (("--jinja", "stray"), "flag `stray`"),
        (("--invented-tomorrow",), "flag `--invented-tomorrow`"),
        (("--threads",), "flag `--threads`"),
        (("-",), "flag `-`"),
    ],
)
def test_llama_servers_dangerous_arguments_are_needs(arguments: tuple[str, ...], need: str) -> None:
    assert need in asked(plan(*arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ("-t", "8", "-c", "4096", "-fa", "on", "--no-mmap", "--seed", "-1", "--temp", "0.7"),
        ("--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}", "--jinja"),
        ("--chat-template-kwargs", '{"enable_thinking": false}', "-lv", "4"),
        ("--override-tensor", r"blk\..*=CPU", "--override-kv", "a=int:1", "-ts", "3,1"),
        ("--alias", "chat", "--api-key", "k", "--embeddings", "--pooling", "cls"),
        ("--mmproj", "{mmproj}", "-md", "{draft}", "--spec-type", "draft-simple", "--spec-draft-n-max", "4"),
        ("--hf-repo", "org/name-GGUF:Q4_K_M", "-hff", "sub/model.gguf", "--lora", "{model}"),
        ("--lora-scaled", "{lora-a-12345678}:0", "--lora-scaled", "{lora-b}:0.5"),
        ("--control-vector-layer-range", "1", "4", "--reasoning-budget", "-1"),
    ],
)
def test_llama_servers_harmless_arguments_need_nothing(arguments: tuple[str, ...]) -> None:
    assert asked(plan(*arguments)) == []


@pytest.mark.parametrize(
    ("arguments", "need"),
    [
        (("--trust-remote-code",), "flag `--trust-remote-code`"),
        (("--trust_remote_code",), "flag `--trust_remote_code`"),
        (("--trust-remote",), "flag `--trust-remote`"),
        (("--chat-template", "/etc/passwd"), "flag `--chat-template`"),
        (("--chat-template=/etc/{{passwd",), "flag `--chat-template`"),
        (("--tool-parser-plugin", "/tmp/x.py"), "flag `--tool-parser-plugin`"),
        (("--allowed-local-media-path", "/"), "flag `--allowed-local-media-path`"),
        (("--config", "/tmp/x.yaml"), "flag `--config`"),
        (("--download-dir", "/"), "flag `--download-dir`"),
        (("--middleware", "os.system"), "flag `--middleware`"),
        (("--load-format", "pt"), "flag `--load-format`"),
        (("--load_format=pt",), "flag `--load-format`"),
        (("--generation-config", "/etc"), "flag `--generation-config`"),
        (("--tokenizer-mode", "custom"), "flag `--tokenizer-mode`"),
        (("--speculative-config", '{"model": "/etc"}'), "flag `--speculative-config`"),
        (("--speculative-config", '{"draft_load_config": {}}'), "flag `--speculative-config`"),
        (("--worker-cls", "x.Y"), "flag `--worker-cls`"),
        (("--kv-transfer-config", "{}"), "flag `--kv-transfer-config`"),
        (("-O3",), "flag `-O3`"),
        (("--uds", "/tmp/s"), "flag `--uds`"),
        (("--host", "0.0.0.0"), "flag `--host`"),
        (("/etc",), "flag `/etc`"),
    ],
)
def test_vllms_dangerous_arguments_are_needs(arguments: tuple[str, ...], need: str) -> None:
    assert need in asked(plan(*arguments, runtime="vllm"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-model-len", "8192", "--max_num_seqs=16", "--enforce-eager", "--dtype", "bfloat16"),
        ("--served-model-name", "a", "b", "--chat-template", "{{ messages[0].content }}"),
        ("--speculative-config", '{"model": "org/draft", "num_speculative_tokens": 4}'),
        ("--load-format", "safetensors", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ],
)
def test_vllms_harmless_arguments_need_nothing(arguments: tuple[str, ...]) -> None:
    assert asked(plan(*arguments, runtime="vllm")) == []


def test_a_path_in_the_place_of_vllms_model_is_a_need() -> None:
    assert asked(plan(runtime="vllm", argv=("vllm", "serve", "/etc"))) == ["path `/etc` of `/etc`"]
    assert asked(plan(runtime="vllm", argv=("vllm", "serve", "org/name"))) == []


@pytest.mark.parametrize(
    ("runtime", "arguments", "need"),
    [
        ("omlx", ("--mcp-config", "/tmp/x"), "flag `--mcp-config`"),
        ("omlx", ("--paged-ssd-cache-dir", "/home/me"), "path `/home/me` of `--paged-ssd-cache-dir`"),
        ("omlx", ("--model-dir", "/"), "flag `--model-dir`"),
        ("omlx", ("--hf-endpoint", "http://evil"), "flag `--hf-endpoint`"),
        ("ollama", ("--anything",), "flag `--anything`"),
        ("ollama", ("more",), "flag `more`"),
    ],
)
def test_arguments_of_shared_daemons_are_held_to_a_list(runtime: str, arguments: tuple[str, ...], need: str) -> None:
    assert need in asked(plan(*arguments, runtime=runtime))


@pytest.mark.parametrize("runtime", PROGRAMS)
@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "PATH", "HOME", "PYTHONPATH", "HF_TOKEN"),
        *("HF_ENDPOINT", "HF_HOME", "LLAMA_ARG_TOOLS", "LLAMA_ARG_MCP_SERVERS_JSON", "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
        *("LLAMA_ARG_HOST", "LLAMA_ARG_MODEL", "LLAMA_ARG_LOG_FILE", "LLAMA_ARG_STATIC_PATH", "LLAMA_CACHE"),
        *("GGML_BACKEND_PATH", "GGML_METAL_PATH_RESOURCES", "CUDA_INJECTION64_PATH", "VLLM_PLUGINS"),
        *("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_INSECURE_SERIALIZATION", "OLLAMA_HOST", "OLLAMA_MODELS"),
        *("OLLAMA_ORIGINS", "HTTPS_PROXY", "http_proxy", "SSL_CERT_FILE", "AWS_SECRET_ACCESS_KEY", "ld_preload"),
    ],
)
def test_variables_beyond_the_list_are_needs(runtime: str, name: str) -> None:
    assert asked(plan(runtime=runtime, env={name: "x"})) == [f"variable `{name}`"]


def test_variables_that_tune_an_engine_need_nothing() -> None:
    assert asked(plan(env={"LLAMA_ARG_CTX_SIZE": "4096", "CUDA_VISIBLE_DEVICES": "0", "LLAMA_API_KEY": "k"})) == []
    assert asked(plan(runtime="vllm", env={"VLLM_USE_V1": "1"})) == []
    assert asked(plan(runtime="ollama", env={"OLLAMA_NUM_PARALLEL": "2"})) == []


def test_variables_from_secrets_are_held_to_the_list_and_may_be_a_token() -> None:
    reference = {"secret": "s", "key": "k"}
    assert asked(plan(runtime="vllm", secretEnv={"HF_TOKEN": reference, "VLLM_API_KEY": reference})) == []
    assert asked(plan(secretEnv={"LD_PRELOAD": reference})) == ["variable `LD_PRELOAD`"]


def test_runtime_generic_and_its_command_are_needs_and_so_are_loader_variables() -> None:
    shell = plan(runtime="generic", argv=("/bin/sh", "-c", "id"), env={"DYLD_INSERT_LIBRARIES": "/x", "MODE": "a"})
    assert asked(shell) == ["runtime `generic`", "command `/bin/sh`", "variable `DYLD_INSERT_LIBRARIES`"]
    owners = Allowance(runtimes=("generic",), commands=("/bin/sh",))
    assert "DYLD_INSERT_LIBRARIES" in refusal(shell, owners, namespace="prod")
    assert "command `/bin/sh`" in refusal(shell, Allowance(runtimes=("generic",)), namespace="prod")
    assert refusal(shell.model_copy(update={"env": {}}), owners, namespace="prod") == ""


@pytest.mark.parametrize("argv", [("/bin/sh", "-c", "id"), ("/tmp/llama-server",), ("vllm", "bench"), ()])
def test_an_engine_is_only_its_own_program(argv: tuple[str, ...]) -> None:
    for runtime in PROGRAMS:
        assert f"command `{argv[0] if argv else ''}`" in asked(plan(runtime=runtime, argv=argv))


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        ("llama3:8b", []),
        ("me/llama3", []),
        ("hf.co/org/name:Q4", []),
        ("evil.example/org/name", ["registry `evil.example`"]),
        ("localhost:5000/x/y", ["registry `localhost:5000`"]),
        ("http://10.0.0.1/x/y", ["registry `10.0.0.1`"]),
    ],
)
def test_ollama_pulls_from_known_registries_only(model: str, needs: list[str]) -> None:
    assert asked(plan(runtime="ollama", daemon_model=model)) == needs


def test_the_owner_widens_what_a_host_allows() -> None:
    allow = {
        "flags": ["--slot-save-path", "--log-*"],
        "variables": ["HF_*"],
        "paths": ["/srv/models"],
    }
    allowance = allowance_of(allow)
    fine = plan("--slot-save-path", "/x", "--log-file", "/y", "-m", "/srv/models/a.gguf", env={"HF_HOME": "/z"})
    assert refusal(fine, allowance, namespace="prod") == ""
    assert "flag `--tools`" in refusal(plan("--tools", "all"), allowance, namespace="prod")
    for outside in ("/srv/models/../x", "/srv/modelsx/a", "/srv", "/srv/models/./a", "srv/models/a", "//srv/models/a"):
        assert f"path `{outside}`" in refusal(plan("-m", outside), allowance, namespace="prod")
    assert refusal(plan("--lora", "/srv/models/a,/etc/b"), allowance, namespace="prod")
    assert refusal(plan("--tools", "all", "-m", "x", env={"LD_PRELOAD": "x"}), UNRESTRICTED, namespace="p") == ""


def test_a_refusal_names_what_it_is_about_and_what_the_owner_can_do() -> None:
    assert refusal(plan("--tools", "all"), DEFAULT, namespace="prod") == (
        "host `mac` does not allow flag `--tools`; the host's owner can allow it in spec.allow.flags of the Host"
    )


@pytest.mark.parametrize(
    ("allow", "namespace", "labels", "admitted"),
    [
        ({}, "prod", {}, True),
        ({"namespaces": ["prod"]}, "prod", {}, True),
        ({"namespaces": ["prod"]}, "dev", {}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, "dev", {"team": "a"}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, "dev", {"team": "b"}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, "dev", None, False),
        ({"namespaces": ["dev"], "namespaceSelector": {"matchLabels": {"team": "a"}}}, "dev", {}, True),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}},
            "dev",
            {"team": "b"},
            True,
        ),
        ({"namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "Near"}]}}, "dev", {"x": "1"}, False),
    ],
)
def test_a_host_may_be_for_some_namespaces_only(
    allow: dict[str, Any], namespace: str, labels: dict[str, str] | None, admitted: bool
) -> None:
    told = refusal(plan(), allowance_of(allow), namespace=namespace, labels=labels)
    assert (told == "") is admitted
    if not admitted:
        assert f"namespace `{namespace}`" in told
