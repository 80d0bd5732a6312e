ollama serve &
server=$!
trap 'kill -TERM "$server"' TERM INT
until ollama list >/dev/null 2>&1; do
  kill -0 "$server" || exit 1
  sleep 1
done
ollama show "$1" >/dev/null 2>&1 || ollama pull "$1" || exit 1
while :; do
  wait "$server"
  code=$?
  kill -0 "$server" 2>/dev/null || exit "$code"
done
