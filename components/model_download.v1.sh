# What version 1 of the downloader's script says in the hashes of pod templates (components/downloader.py): the text of
# the first release, without its comments, since Deployments of that release carry hashes over it. Nobody runs this file.
# It is deleted when the version is raised. docs/adr/0008 has the reasons.
set -u
umask 002
name=${MODEL_PATH##*/}
base=$CACHE_DIR/.$name
part=$base.partial lock=$base.lock stamp=$base.sha256 rejected=$base.rejected heads=$base.headers errs=$base.errors
sum=${MODEL_SHA256:-}
host_file=${HOST_FILE:-/host-model/model.gguf}
poll=${LOCK_POLL_S:-10} stale=${LOCK_STALE_S:-180} pause=${RETRY_S:-2} stall=${STALL_S:-60}
me=${HOSTNAME:-pod}.$$.$(date +%s)
where=$(printf %s "$MODEL_SOURCE" | sed 's,//[^/@]*@,//,; s,[?#].*,,')
beat='' job=''
say() { echo "$*" >&2; }
die() {
status=$1
shift
say "$*"
exit "$status"
}
size() { if [ -f "$1" ]; then stat -c %s "$1"; else echo 0; fi; }
sha() { sha256sum "$1" | cut -d' ' -f1; }
drop() { rm -f "$part" "$part.version"; }
mark() { echo "$sum $(stat -c '%s %Y' "$MODEL_PATH")" >"$stamp"; }
no_space() {
drop
die 28 "ModelTransferOutOfSpace: $where: the model cache has no room for the file (${free:-0} bytes were free); enlarge the claim or delete models"
}
mismatch() {
die 65 "ModelChecksumMismatch: $where: its SHA-256 is $1, the Model says $sum; correct spec.sha256 or the file"
}
in_place() {
[ -f "$MODEL_PATH" ] || return 1
[ -n "$sum" ] || return 0
[ "$(cat "$stamp" 2>/dev/null)" = "$sum $(stat -c '%s %Y' "$MODEL_PATH")" ] && return 0
[ "$(sha "$MODEL_PATH")" = "$sum" ] && mark
}
owner() { cat "$lock/owner" 2>/dev/null; }
acquire() {
last=none idle=0 told=''
until mkdir "$lock" 2>/dev/null && echo "$me" 2>/dev/null >"$lock/owner" && [ "$(owner)" = "$me" ]; do
[ -d "$lock" ] || [ -w "$CACHE_DIR" ] || die 13 "ModelCacheNotWritable: $CACHE_DIR cannot be written by uid $(id -u); check fsGroup and the volume"
[ -n "$told" ] || say "Waiting: another pod is fetching $where"
told=yes
dead=$(owner) now=$dead/$(cat "$lock/beat" 2>/dev/null)
if [ "$now" = "$last" ]; then idle=$((idle + poll)); else idle=0 last=$now; fi
[ "$idle" -lt "$stale" ] || take_over
sleep "$poll"
done
(
n=0
while sleep "$poll" && kill -0 $$; do
case $(owner) in "$me") ;; '') [ -d "$lock" ] || kill $$ ;; *) kill $$ ;; esac
n=$((n + 1))
echo $n >"$lock/beat"
done
) >/dev/null 2>&1 </dev/null &
beat=$!
}
take_over() {
turn=$base.takeover.${dead:-nobody}
[ "$idle" -lt $((stale * 3)) ] || rmdir "$turn" 2>/dev/null
mkdir "$turn" 2>/dev/null || return 0
if [ "$(owner)" = "$dead" ]; then
say "Taking over: the pod that was fetching $where is gone"
rm -rf "$lock"
fi
rmdir "$turn"
}
release() {
[ -z "$beat" ] || kill "$beat" 2>/dev/null
[ "$(owner)" != "$me" ] || rm -rf "$lock"
rm -f "$heads" "$errs"
}
copy() {
[ -r "$host_file" ] || die 66 "ModelSourceNotFound: $where: the node has no such file, or it cannot be read"
free=$(($(df -Pk "$CACHE_DIR" | awk 'END { print $4 }') * 1024))
[ "$(size "$host_file")" -le "$free" ] || no_space
cp "$host_file" "$part" 2>"$errs" && [ "$(size "$host_file")" -eq "$(size "$part")" ] && return
! grep -qi 'no space' "$errs" || no_space
die 74 "ModelTransferFailed: $where: copying stopped: $(tail -n 1 "$errs")"
}
header() {
tr -d '\r' <"$heads" 2>/dev/null | awk -v want="$1:" '/^HTTP\// { v = "" } tolower($1) == want { sub(/^[^:]*:[ \t]*/, ""); v = $0 } END { print v }'
}
fetch() {
tries=0
while :; do
have=$(size "$part") version=$(cat "$part.version" 2>/dev/null) total='' known=''
free=$(($(df -Pk "$CACHE_DIR" | awk 'END { print $4 }') * 1024))
set -- --fail --location --silent --show-error --proto =http,https --proto-redir =http,https --connect-timeout 30 \
--speed-limit 1 --speed-time "$stall" --max-filesize $((free > 0 ? free : 1)) --dump-header "$heads" --output "$part"
if [ "$have" -gt 0 ]; then
set -- "$@" --continue-at "$have"
[ -z "$version" ] || set -- "$@" --header "If-Range: $version"
resumed=yes
else
known=$(sed -n "s/^$sum //p" "$rejected" 2>/dev/null)
[ -z "$known" ] || set -- "$@" --header "If-None-Match: ${known#* }"
resumed=''
fi
rm -f "$heads"
curl "$@" "$MODEL_SOURCE" 2>"$errs" &
job=$!
wait "$job"
code=$? job=''
answer=$(sed -n 's,^HTTP/[^ ]* \([0-9]*\).*,\1,p' "$heads" 2>/dev/null | tail -n 1)
case $answer in
200) total=$(header content-length) ;;
206 | 416) total=$(header content-range) total=${total##*/} ;;
304) [ -z "$known" ] || mismatch "${known%% *}" ;;
esac
case $answer in 200 | 206)
etag=$(header etag)
case $etag in '"'*) ;; *) etag=$(header last-modified) ;; esac
echo "$etag" >"$part.version"
;;
esac
got=$(size "$part")
if [ "$answer" = 416 ] && [ "$have" -gt 0 ]; then
[ "$got" != "$total" ] || return 0
code=33
fi
case $code in
0)
case $total in '' | *[!0-9]*) return ;; esac
[ "$got" -ne "$total" ] || return 0
[ "$got" -lt "$total" ] || drop
why="$got of $total bytes came"
;;
22)
why="the server answered $answer"
case $answer in
401 | 403) die 77 "ModelSourceUnauthorized: $where: $why; it wants credentials, or a licence accepted" ;;
404 | 410) die 66 "ModelSourceNotFound: $where: $why" ;;
408 | 425 | 429 | 5??) ;;
*) die 76 "ModelTransferFailed: $where: $why" ;;
esac
;;
33)
drop
[ "$have" -eq 0 ] || continue
why="the server cannot send ranges"
;;
63) no_space ;;
23)
! grep -qi 'denied' "$errs" || die 13 "ModelCacheNotWritable: $CACHE_DIR cannot be written by uid $(id -u); check fsGroup and the volume"
no_space
;;
51 | 58 | 60 | 77 | 83 | 91) die 78 "ModelSourceUntrusted: $where: $(tail -n 1 "$errs")" ;;
1 | 3) die 64 "ModelSourceInvalid: $where: $(tail -n 1 "$errs")" ;;
*) why=$(tail -n 1 "$errs") ;;
esac
if [ "$got" -gt "$have" ]; then tries=0; else tries=$((tries + 1)); fi
[ "$tries" -lt 5 ] || break
say "Trying again: $where: $why"
sleep $((pause << tries))
done
case $code in
5 | 6 | 7 | 28 | 52 | 97) die 69 "ModelSourceUnreachable: $where: $why" ;;
35) die 78 "ModelSourceUntrusted: $where: $why" ;;
*) die 75 "ModelTransferFailed: $where: $why" ;;
esac
}
in_place && exit 0
mkdir -p "$CACHE_DIR" || die 13 "ModelCacheNotWritable: $CACHE_DIR cannot be made by uid $(id -u); check fsGroup and the volume"
trap release EXIT
trap '[ -z "$job" ] || kill "$job"; die 143 "ModelTransferFailed: $where: stopped"' TERM INT HUP
acquire
in_place && exit 0
certificates=${CA_DIR:-/custom-certs}
if [ -d "$certificates" ]; then
bundle=$(mktemp)
cat "${CURL_CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}" "$certificates"/* >"$bundle"
export CURL_CA_BUNDLE="$bundle"
fi
while :; do
case $MODEL_SOURCE in
file://* | /*) resumed='' etag='' && copy ;;
*) fetch ;;
esac
[ -n "$sum" ] || break
actual=$(sha "$part")
[ "$actual" != "$sum" ] || break
drop
[ -z "$resumed" ] || continue
case $etag in '"'*) echo "$sum $actual $etag" >"$rejected" ;; esac
mismatch "$actual"
done
[ "$(owner)" = "$me" ] || die 75 "ModelTransferFailed: $where: another pod took over"
sync "$part" 2>/dev/null || sync
mv -f "$part" "$MODEL_PATH" || die 74 "ModelTransferFailed: $MODEL_PATH cannot be put in place"
rm -f "$part.version" "$rejected"
[ -z "$sum" ] || mark
say "Fetched $where: $(size "$MODEL_PATH") bytes"
