# Starts vLLM. Words after `--` in the pod's command are its arguments, and go to vLLM as they are.
say() { echo "start: $*" >&2; }

# Fast network cards: tell the libraries which ones are up. What the environment says goes before.
if [ "${KSERVE_INFER_ROCE:-}" = true ]; then
  cards= gid=
  for port in "${KSERVE_INFER_SYSFS:-/sys}"/class/infiniband/mlx5_*/ports/*; do
    [[ -r $port/state && "$(cat "$port/state")" == *ACTIVE* ]] || continue
    card=${port%/ports/*}
    cards+=${cards:+,}${card##*/}:${port##*/}
    for ((index = 0; index < 256; index++)); do
      [ -z "$gid" ] && [ -e "$port/gids/$index" ] || break
      kind="$(cat "$port/gid_attrs/types/$index" 2>/dev/null)"
      address="$(cat "$port/gids/$index" 2>/dev/null)"
      # Of an IPv4 address, since routers know those.
      [[ $address == 0000:0000:0000:0000:0000:ffff:* ]] || continue
      [[ "$card $index $address $kind" =~ ${KSERVE_INFER_IB_GID_INDEX_GREP:-RoCE v2} ]] && gid=$index
    done
  done
  if [ -n "$cards" ]; then
    export NCCL_IB_HCA="${NCCL_IB_HCA:-$cards}"
    export NVSHMEM_HCA_LIST="${NVSHMEM_HCA_LIST:-$cards}"
    export UCX_NET_DEVICES="${UCX_NET_DEVICES:-$cards}"
  else
    say "KSERVE_INFER_ROCE is true, but no mlx5 port is active"
  fi
  if [ -n "$gid" ]; then
    export NCCL_IB_GID_INDEX="${NCCL_IB_GID_INDEX:-$gid}"
    export NVSHMEM_IB_GID_INDEX="${NVSHMEM_IB_GID_INDEX:-$gid}"
    export UCX_IB_GID_INDEX="${UCX_IB_GID_INDEX:-$gid}"
  fi
fi

# Words of VLLM_ADDITIONAL_ARGS, with quotes as in a shell, but nothing in them is expanded or run.
more=()
if [ -n "${VLLM_ADDITIONAL_ARGS:-}" ]; then
  mapfile -d '' -t more < <(python3 -c 'import os, shlex
for word in shlex.split(os.environ["VLLM_ADDITIONAL_ARGS"]): print(word, end="\0")')
  wait "$!" || { say "VLLM_ADDITIONAL_ARGS cannot be split into words"; exit 2; }
fi

# Which options vLLM knows depends on its version.
version=${VLLM_VERSION:-}
if [ -z "$version" ]; then
  version="$(python3 -c 'from importlib.metadata import version; print(version("vllm"))' 2>/dev/null || vllm --version 2>/dev/null)"
fi
major=0 minor=0
if [[ ${version##*$'\n'} =~ ([0-9]+)\.([0-9]+) ]]; then
  major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]}
else
  say "the version of vLLM is not known; only old options are used. VLLM_VERSION sets it"
fi
since() { ((major > $1 || (major == $1 && minor >= $2))); }

args=(serve /mnt/models --served-model-name @names@ --port @port@)
{{ if ne `@group@` `none` }}
# vLLM binds by address, so the leader's name is looked up first. It may take a while to appear.
leader=
for ((attempt = 1; attempt <= ${DP_ADDRESS_RESOLVE_ATTEMPTS:-30}; attempt++)); do
  leader="$(python3 -c 'import socket, sys; print(socket.getaddrinfo(sys.argv[1], None)[0][4][0])' "${LWS_LEADER_ADDRESS:-}" 2>/dev/null)"
  [ -n "$leader" ] && break
  sleep 1
done
[ -n "$leader" ] || { say "the leader ${LWS_LEADER_ADDRESS:-(LWS_LEADER_ADDRESS is not set)} has no address"; exit 1; }
{{ if eq `@role@` `leader` }}rank=0{{ else }}rank=${LWS_WORKER_INDEX:?}{{ end }}
{{ with @workload@.Parallelism }}
{{ if eq `@group@` `data` }}
{{ if eq `@role@` `leader` }}args+=(--api-server-count "${VLLM_API_SERVER_COUNT:-8}"){{ end }}
args+=(--data-parallel-size {{ .Data }} --data-parallel-size-local {{ .DataLocal }} --data-parallel-address "$leader")
args+=(--data-parallel-rpc-port {{ default 5555 .DataRPCPort }} --data-parallel-start-rank "$((rank * {{ .DataLocal }}))")
{{ else }}
args+=(--pipeline-parallel-size {{ .Pipeline }} --nnodes {{ .Pipeline }} --node-rank "$rank" --master-addr "$leader")
{{ end }}
{{ end }}
{{ if ne `@role@` `leader` }}args+=(--headless){{ end }}
{{ end }}
if since 0 16; then
  args+=(--disable-access-log-for-endpoints /health,/metrics,/ping)
else
  args+=(--disable-uvicorn-access-log)
fi
since 0 18 && args+=(--shutdown-timeout {{ shutdownTimeout @workload@ }})
{{ with kvTransferJson @workload@ }}
asked=
for word in "${more[@]}" "$@"; do
  case $word in --kv-transfer-config | --kv-transfer-config=* | --kv_transfer_config | --kv_transfer_config=*) asked=yes ;; esac
done
if [ -z "$asked" ]; then
  if since 0 22; then
    args+=(--kv-transfer-config {{ shellQuote . }})
  else
    say "vLLM $version does not know how to move its cache to memory; kvCacheOffloading has no effect"
  fi
fi
{{ end }}
{{ with @workload@.Parallelism }}
{{ if .Tensor }}args+=(--tensor-parallel-size {{ .Tensor }}){{ end }}
{{ if .Expert }}args+=(--enable-expert-parallel){{ end }}
{{ if eq `@group@` `none` }}
{{ if .Pipeline }}args+=(--pipeline-parallel-size {{ .Pipeline }}){{ end }}
{{ if .Data }}args+=(--data-parallel-size {{ .Data }}){{ end }}
{{ if and .Data .DataRPCPort }}args+=(--data-parallel-rpc-port {{ .DataRPCPort }}){{ end }}
{{ end }}
{{ end }}
{{ if .GlobalConfig.EnableTLS }}
args+=(--enable-ssl-refresh --ssl-certfile /var/run/kserve/tls/tls.crt --ssl-keyfile /var/run/kserve/tls/tls.key)
{{ end }}
exec vllm "${args[@]}" "${more[@]}" "$@"
