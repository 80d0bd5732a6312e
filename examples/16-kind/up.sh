#!/usr/bin/env bash
# From Docker to an answered chat: a kind cluster, the operator in it, a service. `make kind` runs this file.
# Arguments go to `herdsman install`. KIND_DIR is where the cluster is kept; IMAGE_ARCHIVE names an image that is built.
set -euo pipefail
cd "$(dirname "$0")"
PATH="$PWD/../../.venv/bin:$PATH"
directory=${KIND_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/herdsman/kind}

herdsman cluster up --provider kind --kind-config cluster/kind.yaml --dir "$directory"
eval "$(herdsman cluster env --dir "$directory")"

archive=${IMAGE_ARCHIVE:-}
if [ -z "$archive" ]; then
    archive=$directory/herdsman.tar
    herdsman image build -o "$archive"
fi
herdsman cluster load "$archive" --dir "$directory"

herdsman install "$@"
kubectl --namespace herdsman-system rollout status deployment/herdsman --timeout=5m
kubectl apply --filename service.yaml
kubectl wait --for=condition=Ready --timeout=20m inferenceservices.inference.llmkube.dev/chat

port=$(sed -n 's/.*hostPort: //p' cluster/kind.yaml)
question='{"messages": [{"role": "user", "content": "Tell me a story about a shepherd."}], "max_tokens": 48}'
echo "POST http://127.0.0.1:$port/v1/chat/completions"
curl --fail --silent --show-error --retry 10 --retry-all-errors --header 'Content-Type: application/json' \
    --data "$question" "http://127.0.0.1:$port/v1/chat/completions"
echo
