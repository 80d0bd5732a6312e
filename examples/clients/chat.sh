#!/bin/sh
# Lists the models, sends a chat, and streams another one. Needs OPENAI_BASE_URL, OPENAI_API_KEY and MODEL.
set -eu

# The key is in a file, because every user of the machine can read the arguments of a process.
headers=$(mktemp)
trap 'rm -f "$headers"' EXIT
printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$OPENAI_API_KEY" >"$headers"

curl -fsS -H "@$headers" "$OPENAI_BASE_URL/models"
echo
curl -fsS -H "@$headers" "$OPENAI_BASE_URL/chat/completions" \
  -d "{\"model\": \"$MODEL\", \"max_tokens\": 8, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"
echo
curl -fsSN -H "@$headers" "$OPENAI_BASE_URL/chat/completions" \
  -d "{\"model\": \"$MODEL\", \"max_tokens\": 8, \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"
