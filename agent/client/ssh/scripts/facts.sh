# Prints what a host is, in lines `name value`; a tool that is missing leaves out a line. Ends with 0.
# `agent.client.ssh.facts` reads them.
PATH="$PATH:/opt/homebrew/bin:/usr/local/bin:$HOME/.local/bin:$HOME/bin"
say() { [ -z "$2" ] || printf '%s %s\n' "$1" "$2"; }
say os "$(uname -s)"; say arch "$(uname -m)"; say user "$(id -un)"; say uid "$(id -u)"; say home "$HOME"
say hostname "$(hostname 2>/dev/null || uname -n)"
say cpus "$(getconf _NPROCESSORS_ONLN 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null)"
say memory_kib "$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo 2>/dev/null)"
say memory "$(sysctl -n hw.memsize 2>/dev/null)"
# shellcheck disable=SC2086  # four words
set -- $SSH_CONNECTION
say address "$3"
case $(uname -s) in
  Darwin) command -v launchctl >/dev/null && say init launchd ;;
  *) command -v systemctl >/dev/null && say init systemd ;;
esac
for tool in curl sha256sum shasum; do command -v "$tool" >/dev/null && say tool "$tool"; done
for name in llama-server vllm ollama omlx; do
  path=$(command -v "$name") || continue
  say binary "$name $path"
  say version "$name $("$path" --version 2>&1 </dev/null | tr '\n' ' ' | cut -c1-200)"
done
if [ "$(uname -s)" = Darwin ] && [ "$(uname -m)" = arm64 ]; then
  say metal "$(sysctl -n iogpu.wired_limit_mb 2>/dev/null || echo 0) $(sysctl -n machdep.cpu.brand_string)"
fi
nvidia-smi --query-gpu=memory.total,name --format=csv,noheader,nounits 2>/dev/null | sed 's/^/cuda /; s/,//'
for card in /sys/class/drm/card[0-9]*/device; do
  [ "$(cat "$card/vendor" 2>/dev/null)" = 0x1002 ] && say rocm "$(cat "$card/mem_info_vram_total" 2>/dev/null)"
done
exit 0
