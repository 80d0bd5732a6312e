# Brings one file to a host: whole, verified, resumed where it was cut. POSIX sh and curl, on Linux and macOS.
# Runs by itself, cut loose from the SSH connection that started it; `fetch` reads what it leaves in the job's folder.
# $1: the file. $2: its source. $3: its SHA-256, or empty. $4: its size, or empty. $5: `public`, or empty.
#   <folder>/.<name>.fetch/pid      who fetches; alive as long as the process is
#   <folder>/.<name>.fetch/part     what has arrived
#   <folder>/.<name>.fetch/total    bytes of the whole, as the server said
#   <folder>/.<name>.fetch/failed   "<Reason> <message>" of the last try, if it ended badly
set -u
LC_ALL=C PATH="$PATH:/opt/homebrew/bin:/usr/local/bin"
export LC_ALL PATH
umask 077
file=$1 source=$2 sum=$3 size=$4 reach=$5
job=$(dirname "$file")/.$(basename "$file").fetch
part=$job/part
bytes() { if [ -f "$1" ]; then wc -c <"$1" | tr -d ' '; else echo 0; fi; }
die() {
  echo "$1 $2" >"$job/failed"
  rm -f "$job/pid"
  exit 1
}
# Of two that start at once one gets the folder's lock; a lock whose owner is dead is worth nothing.
mkdir -p "$job" || exit 1
if ! (set -C; echo $$ >"$job/pid") 2>/dev/null; then
  kill -0 "$(cat "$job/pid")" 2>/dev/null && exit 0
  echo $$ >"$job/pid"
fi
rm -f "$job/failed"
trap 'rm -f "$job/pid"' EXIT
trap 'exit 1' TERM INT HUP

sum_of() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}
# A file that is there is kept, unless its sum is another than the plan's.
if [ -f "$file" ]; then
  if [ -z "$sum" ] || [ "$(sum_of "$file")" = "$sum" ]; then
    printf '%s\n' "$sum" >"$job/sum"
    exit 0
  fi
  rm -f "$job/sum"
fi

# Every hop is looked at before the next: an address that is not public may not be asked for, whatever redirects there.
private() {
  case $1 in
    10.* | 127.* | 0.* | 169.254.* | 192.168.* | 192.0.0.* | 198.1[89].* | 22[4-9].* | 2[34][0-9].* | 25[0-5].*) return 0 ;;
    172.1[6-9].* | 172.2[0-9].* | 172.3[01].* | 100.6[4-9].* | 100.[789][0-9].* | 100.1[01][0-9].* | 100.12[0-7].*) return 0 ;;
    ::* | [fF][cCdDeEfF]* | 64:ff9b:* | 2001:0:* | 2002:*) return 0 ;;
  esac
  return 1
}
hop=0 url=$source
while :; do
  answer=$(curl --silent --show-error --globoff --proto '=http,https' --connect-timeout 20 --max-time 60 --range 0-0 \
    --output /dev/null --dump-header "$job/headers" --max-filesize 1048576 --write-out '%{http_code} %{remote_ip} %{redirect_url}' "$url" 2>"$job/words")
  status=$?
  # shellcheck disable=SC2086
  set -- $answer
  code=${1:-000} ip=${2:-} next=${3:-}
  if [ "$reach" = public ] && [ -n "$ip" ] && private "$ip"; then
    die SourceRefused "$(printf %s "$url" | sed 's,^\([a-z]*://[^/]*\).*,\1,') leads to $ip, which is not a public address"
  fi
  case $code in
    30[12378])
      hop=$((hop + 1))
      [ $hop -le 8 ] && [ -n "$next" ] || die SourceUnexpected "it redirects without end"
      case $url/$next in https://*/http://*) die SourceUntrusted "it redirects from https to http" ;; esac
      url=$next
      ;;
    200 | 206 | 416) break ;;
    401 | 403 | 407) die SourceUnauthorized "the server answered $code" ;;
    404 | 410) die SourceNotFound "the server answered $code" ;;
    000)
      case $status in
        35 | 51 | 58 | 60 | 77) die SourceUntrusted "$(tr '\n' ' ' <"$job/words")" ;;
        63) break ;;
      esac
      die SourceUnreachable "$(tr '\n' ' ' <"$job/words")"
      ;;
    *) [ "$status" = 63 ] && break; die SourceUnreachable "the server answered $code" ;;
  esac
done

# A part goes on only with the file that it was begun with.
field() { tr -d '\r' <"$job/headers" | awk -v name="$1" 'tolower($1) == name ":" { $1 = ""; print substr($0, 2) }' | tail -n 1; }
version=$(field etag) total=$(field content-range)
total=${total##*/}
[ "$code" != 200 ] || total=$(field content-length)
[ -n "$version" ] || version=$(field last-modified)
[ "$(cat "$job/version" 2>/dev/null)" = "$version" ] && [ -n "$version" ] || rm -f "$part"
printf '%s\n' "$version" >"$job/version"
case $total in '' | *[!0-9]*) total=${size:-} ;; esac
printf '%s\n' "${total:-}" >"$job/total"
if [ -n "$total" ]; then
  free=$(($(df -Pk "$job" | awk 'END { print $4 }') * 1024))
  [ $((total - $(bytes "$part"))) -le "$free" ] || die NoSpace "$free bytes are free, the file has $total"
fi
if [ "$(bytes "$part")" != "${total:-none}" ]; then
  curl --silent --show-error --fail --globoff --proto '=http,https' --connect-timeout 20 --speed-limit 1 --speed-time 60 \
    --continue-at - --output "$part" "$url" 2>"$job/words"
  status=$?
  case $status in
    0) ;;
    33) rm -f "$part"; die SourceUnreachable "the server sends no ranges; starting anew" ;;
    23) die NoSpace "the file cannot be written: $(tr '\n' ' ' <"$job/words")" ;;
    *) die SourceUnreachable "$(bytes "$part") bytes came: $(tr '\n' ' ' <"$job/words")" ;;
  esac
fi
got=$(bytes "$part")
for wanted in "$total" "$size"; do
  [ -z "$wanted" ] || [ "$got" = "$wanted" ] || { rm -f "$part"; die SizeMismatch "it has $got bytes, and $wanted were promised"; }
done
if [ -n "$sum" ]; then
  actual=$(sum_of "$part")
  [ "$actual" = "$sum" ] || { rm -f "$part"; die ChecksumMismatch "its SHA-256 is $actual, the plan says $sum"; }
fi
mv -f "$part" "$file" || die StoreFailed "it cannot be put in place"
printf '%s\n' "$sum" >"$job/sum"
