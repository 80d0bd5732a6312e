#!/bin/sh
# Runs before the kubelet ends a llama-server whose service waits for idle: $1 is the URL of /slots, $2 the seconds
# that requests may take. It uses what the image has, and a plain pause where nobody can say what the slots do.
# A change here restarts the pods of services that wait for idle, so it is worth a good reason (docs/adr/0008).
key=${LLAMA_API_KEY:-}
left=$2
blind() {
  sleep "${BLIND_S:-15}"
  exit 0
}
ask() {
  if command -v curl >/dev/null 2>&1; then
    # The key reaches curl on its standard input: arguments can be read by every process of the pod.
    if [ -n "$key" ]; then
      printf 'header = "Authorization: Bearer %s"\n' "$(printf %s "$key" | sed 's/[\\"]/\\&/g')"
    fi | curl -sf -m 5 -K - "$1" 2>/dev/null
  elif command -v wget >/dev/null 2>&1 && [ -z "$key" ]; then
    wget -q -T 5 -O - "$1" 2>/dev/null
  else
    return 1
  fi
}
# Proxies and clients need a moment to hear that the pod takes no new requests.
sleep "${FORGOTTEN_S:-5}"
while [ "$left" -gt 0 ]; do
  slots=$(ask "$1") || blind
  case $slots in *'"is_processing":true'* | *'"is_processing": true'*) ;; *) exit 0 ;; esac
  sleep 2
  left=$((left - 2))
done
