"""The arguments and environment variables that each engine may have on every host. Data only.

`host_rules` reads these tables. They list the flags for performance, context, sampling, literal templates and the form
of the API. A flag that opens a file, listens, fetches, or starts a program is not listed, so it is refused. Unknown
flags are refused too, because a later release of an engine may give them any meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Flags:
    """The allow-list of one engine's command line."""

    command: tuple[str, ...]
    """Program and subcommands, with which the command line must start."""
    switches: frozenset[str] = frozenset()
    """Flags without a value."""
    values: frozenset[str] = frozenset()
    """Flags with one value: a number, a name or a text."""
    pairs: frozenset[str] = frozenset()
    """Flags with two values."""
    lists: frozenset[str] = frozenset()
    """Flags with one or more values."""
    paths: frozenset[str] = frozenset()
    """Flags whose value is a path."""
    modules: frozenset[str] = frozenset()
    """Flags with one or more values `NAME=PATH`."""
    repositories: frozenset[str] = frozenset()
    """Flags whose value is a Hugging Face repository."""
    host_values: Mapping[str, str] = field(default_factory=dict)
    """Flags that only the host sets, with the placeholder for its value."""
    choices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Flags with one value, of which only these values are harmless."""
    templates: frozenset[str] = frozenset()
    """Flags whose value is a template, or the path of one."""
    drafts: frozenset[str] = frozenset()
    """Flags whose value is a JSON object that describes speculative decoding."""
    models: int = 0
    """Number of positional arguments that name the model."""


LLAMA_SERVER = Flags(
    command=("llama-server",),
    switches=_words(
        """
        --swa-full --perf --no-perf -e --escape --no-escape -kvo --kv-offload -nkvo --no-kv-offload --repack -nr
        --no-repack --no-host --mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io -cmoe --cpu-moe -cmoed
        --cpu-moe-draft --spec-draft-cpu-moe --check-tensors --op-offload --no-op-offload --log-disable --log-jsonl
        --no-log-jsonl -v --verbose --log-verbose --offline --log-prefix --no-log-prefix --log-timestamps
        --no-log-timestamps --ignore-eos -bs --backend-sampling -kvu --kv-unified -no-kvu --no-kv-unified
        --cache-idle-slots --no-cache-idle-slots --context-shift --no-context-shift -sp --special --warmup --no-warmup
        --spm-infill -cb --cont-batching -nocb --no-cont-batching --mmproj-auto --no-mmproj --no-mmproj-auto
        --mmproj-offload --no-mmproj-offload --ui --webui --no-ui --no-webui --embedding --embeddings --rerank
        --reranking --cache-prompt --no-cache-prompt --metrics --props --slots --no-slots --jinja --no-jinja
        --reasoning-preserve --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing --prefill-assistant
        --no-prefill-assistant --lora-init-without-apply --spec-draft-backend-sampling --no-spec-draft-backend-sampling
        --spec-default
        """
    ),
    values=_words(
        """
        -t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --poll -Cb --cpu-mask-batch -Crb
        --cpu-range-batch --cpu-strict-batch --poll-batch -c --ctx-size -n --predict --n-predict -b --batch-size -ub
        --ubatch-size --keep -fa --flash-attn --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale
        --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -ctk --cache-type-k -ctv
        --cache-type-v -dt --defrag-thold -lm --load-mode -lzm --lazy-mode --numa -dev --device -ot --override-tensor
        -ncmoe --n-cpu-moe --moe-cache-mib -ncffn --n-cpu-ffn -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts
        --tensor-split -mg --main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx --override-kv --log-colors -lv
        --verbosity --log-verbosity --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd
        --cache-type-v-draft --samplers -s --seed --sampler-seq --sampling-seq --temp --temperature --top-k --top-p
        --min-p --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold --typical --typical-p --repeat-last-n
        --repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length
        --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp
        --mirostat --mirostat-lr --mirostat-ent -l --logit-bias --grammar -j --json-schema --kv-unified-per-slot -ctxcp
        --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cpent --checkpoint-every-n-tokens -cram
        --cache-ram -r --reverse-prompt --pooling -np --parallel -mmdev --mmproj-device --image-min-tokens
        --image-max-tokens --mtmd-batch-max-tokens --video-fps --video-timestamp-interval -a --alias --tags
        --embd-normalize --ui-config --webui-config --api-key --chat-template-kwargs -to --timeout --sse-ping-interval
        --threads-http --cache-reuse --reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget
        --reasoning-budget-message --chat-template -sps --slot-prompt-similarity --sleep-idle-seconds
        --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft
        --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict
        --cpu-strict-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft
        --spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-poll-batch --poll-batch-draft
        --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed
        --n-cpu-moe-draft --spec-draft-n-max --spec-draft-n-min --spec-draft-p-split --draft-p-split --spec-draft-p-min
        --draft-p-min --spec-draft-sampling --spec-draft-device -devd --device-draft --spec-draft-ngl -ngld
        --gpu-layers-draft --n-gpu-layers-draft --spec-type --spec-ngram-mod-n-min --spec-ngram-mod-n-max
        --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits
        --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n
        --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --draft --draft-n --draft-max --draft-min
        --draft-n-min -cd --ctx-size-draft
        """
    ),
    pairs=_words("--control-vector-layer-range"),
    paths=_words(
        """
        -m --model -mm --mmproj -md --model-draft --spec-draft-model --lora --lora-scaled --control-vector
        --control-vector-scaled -hff --hf-file
        """
    ),
    repositories=_words("-hf -hfr --hf-repo -hfd -hfrd --hf-repo-draft --spec-draft-hf"),
    host_values={"--host": "{host}", "--port": "{port}"},
)
"""From `llama-server --help` of b11434. `--prio` is not listed: the host's owner sets the priority of processes."""

VLLM = Flags(
    command=("vllm", "serve"),
    switches=_words(
        """
        --enable-prefix-caching --no-enable-prefix-caching --enable-chunked-prefill --no-enable-chunked-prefill
        --enforce-eager --no-enforce-eager --enable-expert-parallel --no-enable-expert-parallel
        --enable-auto-tool-choice --no-enable-auto-tool-choice --disable-log-requests --enable-log-requests
        --no-enable-log-requests --disable-log-stats --disable-uvicorn-access-log --disable-sliding-window
        --disable-cascade-attn --disable-custom-all-reduce --enable-lora --no-enable-lora --calculate-kv-scales
        --async-scheduling --no-async-scheduling --disable-frontend-multiprocessing --enable-prompt-tokens-details
        --enable-server-load-tracking --enable-force-include-usage --return-tokens-as-token-ids --enable-dbo
        --disable-fastapi-docs --exclude-tools-when-tool-choice-none --skip-tokenizer-init --enable-eplb
        """
    ),
    values=_words(
        """
        --max-model-len --max-num-seqs --max-num-batched-tokens --gpu-memory-utilization --kv-cache-memory-bytes
        --tensor-parallel-size -tp --pipeline-parallel-size -pp --data-parallel-size -dp --decode-context-parallel-size
        -dcp --dtype --quantization -q --kv-cache-dtype --block-size --swap-space --cpu-offload-gb --seed --max-logprobs
        --logprobs-mode --revision --code-revision --tokenizer-revision --tool-call-parser --reasoning-parser
        --chat-template-content-format --response-role --attention-backend --max-seq-len-to-capture --scheduling-policy
        --limit-mm-per-prompt --mm-processor-kwargs --mm-processor-cache-gb --task --runner --convert --max-log-len
        --uvicorn-log-level --max-loras --max-lora-rank --max-cpu-loras --lora-dtype --override-generation-config
        --rope-scaling --rope-theta --long-prefill-token-threshold --max-num-partial-prefills
        --max-long-partial-prefills --preemption-mode --num-gpu-blocks-override --prefix-caching-hash-algo --api-key
        --num-lookahead-slots --scheduler-delay-factor --default-chat-template-kwargs --stream-interval
        --renderer-num-workers --api-server-count
        """
    ),
    lists=_words("--served-model-name --cuda-graph-sizes --cudagraph-capture-sizes"),
    modules=_words("--lora-modules"),
    host_values={"--host": "{host}", "--port": "{port}"},
    choices={
        "--load-format": _words("auto safetensors mistral gguf bitsandbytes dummy"),
        "--generation-config": _words("auto vllm"),
        "--tokenizer-mode": _words("auto slow mistral"),
    },
    templates=_words("--chat-template"),
    drafts=_words("--speculative-config"),
    models=1,
)
"""From `vllm serve --help`. Not listed are `--trust-remote-code`, which runs code of a repository, and formats of
weights that are pickles.
"""

OMLX = Flags(
    command=("omlx", "serve"),
    switches=_words("--no-cache"),
    values=_words(
        """
        --kv-cache-quant --hot-cache-max-size --paged-ssd-cache-max-size --max-model-memory --max-process-memory
        --max-num-seqs --max-concurrent-requests --completion-batch-size --prefill-batch-size --initial-cache-blocks
        --log-level --api-key
        """
    ),
    paths=_words("--paged-ssd-cache-dir"),
    host_values={"--host": "{host}", "--port": "{port}", "--model-dir": "{models}"},
)
OLLAMA = Flags(command=("ollama", "serve"))

FLAGS: Mapping[str, Flags] = {"llamacpp": LLAMA_SERVER, "vllm": VLLM, "omlx": OMLX, "ollama": OLLAMA}
"""By runtime. The runtime `generic` is absent: its command comes from the service."""

_EVERYWHERE = _words(
    """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HSA_OVERRIDE_GFX_VERSION
    ZE_AFFINITY_MASK ONEAPI_DEVICE_SELECTOR OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES MKL_NUM_THREADS
    OPENBLAS_NUM_THREADS TZ LANG LC_ALL
    """
)
_OF_LLAMA_SERVER = """
    THREADS CTX_SIZE N_PREDICT BATCH UBATCH SWA_FULL FLASH_ATTN PERF ROPE_SCALING_TYPE ROPE_SCALE ROPE_FREQ_BASE
    ROPE_FREQ_SCALE YARN_ORIG_CTX YARN_EXT_FACTOR YARN_ATTN_FACTOR YARN_BETA_SLOW YARN_BETA_FAST KV_OFFLOAD
    NO_KV_OFFLOAD REPACK NO_HOST CACHE_TYPE_K CACHE_TYPE_V DEFRAG_THOLD LOAD_MODE LAZY_MODE MLOCK MMAP NO_MMAP DIO NUMA
    DEVICE OVERRIDE_TENSOR CPU_MOE N_CPU_MOE MOE_CACHE_MIB N_CPU_FFN N_GPU_LAYERS SPLIT_MODE TENSOR_SPLIT MAIN_GPU FIT
    FIT_TARGET FIT_CTX LOG_JSONL LOG_COLORS OFFLINE LOG_VERBOSITY LOG_PREFIX LOG_TIMESTAMPS SPEC_DRAFT_CACHE_TYPE_K
    SPEC_DRAFT_CACHE_TYPE_V TEMPERATURE TOP_K TOP_P MIN_P REPEAT_PENALTY PRESENCE_PENALTY FREQUENCY_PENALTY
    BACKEND_SAMPLING KV_UNIFIED_PER_SLOT CTX_CHECKPOINTS CHECKPOINT_MIN_SPACING_NT CACHE_RAM KV_UNIFIED
    CACHE_IDLE_SLOTS CONTEXT_SHIFT POOLING N_PARALLEL CONT_BATCHING MMPROJ_AUTO MMPROJ_OFFLOAD IMAGE_MIN_TOKENS
    IMAGE_MAX_TOKENS MTMD_BATCH_MAX_TOKENS VIDEO_FPS VIDEO_TIMESTAMP_INTERVAL ALIAS TAGS UI_CONFIG UI EMBEDDINGS
    RERANKING CHAT_TEMPLATE CHAT_TEMPLATE_KWARGS TIMEOUT SSE_PING_INTERVAL THREADS_HTTP CACHE_PROMPT CACHE_REUSE
    ENDPOINT_METRICS ENDPOINT_PROPS ENDPOINT_SLOTS JINJA THINK REASONING REASONING_EFFORT THINK_BUDGET
    THINK_BUDGET_MESSAGE REASONING_PRESERVE SKIP_CHAT_PARSING PREFILL_ASSISTANT SPEC_DRAFT_CPU_MOE SPEC_DRAFT_N_CPU_MOE
    SPEC_DRAFT_N_MAX SPEC_DRAFT_N_MIN SPEC_DRAFT_P_SPLIT SPEC_DRAFT_P_MIN SPEC_DRAFT_BACKEND_SAMPLING
    SPEC_DRAFT_SAMPLING N_GPU_LAYERS_DRAFT SPEC_TYPE DRAFT_MAX DRAFT_MIN
    """
VARIABLES: Mapping[str, frozenset[str]] = {
    "llamacpp": _EVERYWHERE
    | frozenset(f"LLAMA_ARG_{name}" for name in _OF_LLAMA_SERVER.split())
    | _words(
        """
        LLAMA_API_KEY GGML_CUDA_FORCE_MMQ GGML_CUDA_FORCE_CUBLAS GGML_CUDA_ENABLE_UNIFIED_MEMORY
        GGML_CUDA_DISABLE_GRAPHS GGML_CUDA_GRAPH_OPT GGML_CUDA_NO_PINNED GGML_VK_VISIBLE_DEVICES
        GGML_METAL_NO_RESIDENCY
        """
    ),
    "vllm": _EVERYWHERE
    | _words(
        """
        VLLM_API_KEY VLLM_ATTENTION_BACKEND VLLM_USE_V1 VLLM_LOGGING_LEVEL VLLM_WORKER_MULTIPROC_METHOD
        VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_CPU_KVCACHE_SPACE VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_NUM_OF_RESERVED_CPU
        VLLM_FLASH_ATTN_VERSION VLLM_USE_TRITON_FLASH_ATTN VLLM_USE_FLASHINFER_SAMPLER VLLM_ENABLE_V1_MULTIPROCESSING
        VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_RPC_TIMEOUT VLLM_NO_USAGE_STATS DO_NOT_TRACK PYTORCH_CUDA_ALLOC_CONF
        NCCL_P2P_DISABLE NCCL_IB_DISABLE TOKENIZERS_PARALLELISM
        """
    ),
    "ollama": _EVERYWHERE
    | _words(
        """
        OLLAMA_CONTEXT_LENGTH OLLAMA_FLASH_ATTENTION OLLAMA_KV_CACHE_TYPE OLLAMA_KEEP_ALIVE OLLAMA_LOAD_TIMEOUT
        OLLAMA_MAX_LOADED_MODELS OLLAMA_MAX_QUEUE OLLAMA_NUM_PARALLEL OLLAMA_SCHED_SPREAD OLLAMA_GPU_OVERHEAD
        OLLAMA_MULTIUSER_CACHE OLLAMA_NOPRUNE
        """
    ),
    "omlx": _EVERYWHERE | _words("OMLX_LOG_LEVEL OMLX_API_KEY"),
}
"""By runtime."""

SECRET_VARIABLES = _words("HF_TOKEN")
"""Variables that a service of any engine may set from a Secret of its namespace, in addition to `VARIABLES`."""

GENERIC_REFUSED = _words(
    """
    PATH HOME SHELL ENV BASH_ENV IFS PS4 PROMPT_COMMAND NODE_OPTIONS NODE_PATH JAVA_TOOL_OPTIONS _JAVA_OPTIONS
    JDK_JAVA_OPTIONS GCONV_PATH LOCPATH NLSPATH HOSTALIASES RESOLV_HOST_CONF TMPDIR KUBECONFIG GGML_BACKEND_PATH
    CUDA_INJECTION64_PATH CUDA_INJECTION32_PATH VK_ICD_FILENAMES VK_DRIVER_FILES VK_LAYER_PATH OCL_ICD_FILENAMES
    CLASSPATH OPENSSL_CONF OPENSSL_MODULES SSLKEYLOGFILE
    """
)
"""Variables that make a program of runtime `generic` load or run other code than its command."""
GENERIC_REFUSED_PREFIXES = ("LD_", "DYLD_", "PYTHON", "PERL", "RUBY", "GIT_", "HF_", "AWS_", "HERDSMAN_", "BASH_FUNC_")
