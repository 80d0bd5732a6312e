#!/bin/sh
# Runs before the kubelet ends an engine, and returns when no request is under way, or $2 seconds after it began.
# $1: a URL of the engine that tells whether it works on a request. $3: the port that clients connect to.
# $4: what $1 answers: `slots` (llama-server's JSON), or the name of a gauge in Prometheus' text. Empty: the engine
# cannot be asked, and open connections count as requests.
# The connections come from the kernel's tables, because an engine calls a request done before its client has taken all
# of the answer. The hashes of pod templates do not count this text (docs/adr/0037).
rounds=0
# Without `date` a round of a second stands for a second.
clock() {
  date +%s 2>/dev/null || echo "$rounds"
}
began=$(clock)
# Variables for downloads must not send a question to the engine itself through a proxy.
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
key=${LLAMA_API_KEY:-}
port=$(printf '%04X' "$3")
ask() {
  if command -v curl >/dev/null 2>&1; then
    # The key reaches curl on its standard input: arguments can be read by every process of the pod.
    if [ -n "$key" ]; then
      printf 'header = "Authorization: Bearer %s"\n' "$(printf %s "$key" | sed 's/[\\"]/\\&/g')"
    fi | curl -sf -m 5 -K - "$1" 2>/dev/null
  elif command -v wget >/dev/null 2>&1 && [ -z "$key" ]; then
    wget -q -T 5 -O - "$1" 2>/dev/null
  elif command -v python3 >/dev/null 2>&1 && [ -z "$key" ]; then
    python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())' "$1" 2>/dev/null
  fi
}
# Reads an answer. 0: a request is under way. 1: none is. 2: the answer does not tell.
judge() {
  told=2
  while IFS= read -r line || [ -n "$line" ]; do
    case $1 in
      slots)
        case $line in
          *'"is_processing":true'* | *'"is_processing": true'*) told=0 ;;
          *'"is_processing":'*) [ "$told" = 0 ] || told=1 ;;
        esac
        ;;
      *)
        case $line in
          "$1 "* | "$1{"*)
            case ${line##* } in
              *[1-9]*) told=0 ;;
              *) [ "$told" = 0 ] || told=1 ;;
            esac
            ;;
        esac
        ;;
    esac
  done
  return "$told"
}
working() {
  [ -n "$2" ] || return 2
  ask "$1" | judge "$2"
}
# Lines of the kernel's tables of connections that may be about the port; shells read them byte by byte.
rows() {
  for table in /proc/net/tcp /proc/net/tcp6; do
    if [ -r "$table" ] && command -v grep >/dev/null 2>&1; then
      grep ":$port " "$table"
    elif [ -r "$table" ]; then
      while IFS= read -r row; do
        printf '%s\n' "$row"
      done <"$table"
    fi
  done
}
# 0: a client has not taken all of its answer. 1: clients are connected. 2: none is. 3: the kernel does not tell.
connections() {
  [ -r /proc/net/tcp ] || return 3
  rows | {
    found=2
    while read -r _ mine _ state queues _; do
      [ "${mine##*:}" = "$port" ] || continue
      case $state:${queues%%:*} in
        # Established, and all is sent.
        01:00000000) [ "$found" = 0 ] || found=1 ;;
        # Closed as far as clients are concerned, or the socket that listens.
        *:00000000 | 0A:*) ;;
        *) found=0 ;;
      esac
    done
    exit "$found"
  }
}
# Proxies and clients need a moment to hear that the pod takes no new requests.
sleep "${FORGOTTEN_S:-5}"
quiet=0
idle=0
while [ $(($(clock) - began)) -lt "$2" ]; do
  working "$1" "$4"
  work=$?
  connections
  case $work$? in
    # Nobody is connected, and the engine does not say that it works for anybody.
    12 | 22 | 13) quiet=$((quiet + 1)) idle=0 ;;
    # A connection of an idle engine is one that its client keeps; most servers close it after 5 seconds.
    11) quiet=0 idle=$((idle + 1)) ;;
    23)
      sleep "${BLIND_S:-15}"
      exit 0
      ;;
    *) quiet=0 idle=0 ;;
  esac
  # A request may lie between two looks, so one look does not do.
  if [ "$quiet" -ge 2 ] || [ "$idle" -ge "${KEPT_S:-6}" ]; then
    exit 0
  fi
  sleep 1
  rounds=$((rounds + 1))
done
