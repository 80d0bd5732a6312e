#!/bin/sh
# Puts a model's files in place: whole, verified, once for all pods that share the cache. POSIX sh, curl, sha256sum, awk;
# runs in the init container `model-downloader` (components/model_files.py strips the comments).
#
# In:  MODEL_SOURCE (http, https, file:// or absolute), CACHE_DIR, MODEL_PATH, MODEL_SHA256 (may be missing).
#      MODEL_FILES: a list of paths, one a line, below MODEL_SOURCE and, equally, below CACHE_DIR; the sum is the first one's.
#      S3_BUCKET with S3_KEY, or with S3_PREFIX and MODEL_FILES; AWS_REGION, AWS_ENDPOINT_URL and the usual credentials.
#      HF_TOKEN for the Hub (and HUB_HOST, a mirror of it), SOURCE_TOKEN for any other source.
#      REFRESH_POLICY=OnChange: ask whether the source changed even if the file is there.
# Out: the files, or a last line on stderr "<Reason>: <what happened>" and an exit status of its own per reason;
#      meanwhile, from the one pod that downloads, lines "progress <bytes> <of bytes, 0 if unknown> <file, - at the end>".
# One pod downloads; the others wait on its lock and its heartbeat. A download that was cut goes on where it stopped.
# Large files come in ranges, several at a time, straight into their places in one file.
# The shell's own number is written ${$} throughout: of two dollar signs in a command Kubernetes takes one away.
set -u
umask 002
export LC_ALL=C
newline='
'
files=${MODEL_FILES:-} files=${files%"$newline"}
host_file=${HOST_FILE:-/host-model/model.gguf}
poll=${LOCK_POLL_S:-10} stale=${LOCK_STALE_S:-180} pause=${RETRY_S:-2} stall=${STALL_S:-60} tick=${PROGRESS_S:-5} ramp=${RAMP_S:-1}
streams=${STREAMS:-8} parallel_from=${PARALLEL_FROM:-67108864} chunk=${CHUNK_BYTES:-67108864}
me=${HOSTNAME:-pod}.${$}.$(date +%s)
file='' worker='' beat='' reporter='' job='' jobs='' why='' plain=''
# Bytes of the files that are in place, and of all files as far as that is known.
before=0 whole=0

say() { echo "$*" >&2; }
die() {
  if [ -n "$worker" ]; then
    # The shell that waits for the workers has the last word. One whose patience ends does not stop the others.
    case $1 in 69 | 75) note=tired ;; *) note=verdict ;; esac
    # On a full disk the status has to say it all.
    echo "$*" >>"$work/$note"
    exit "$1"
  fi
  hush
  say "Model$2: $where: $3"
  exit "$1"
}
size() { if [ -f "$1" ]; then stat -c %s "$1"; else echo 0; fi; }
room() { free=$(($(df -Pk "$CACHE_DIR" | awk 'END { print $4 }') * 1024)); }
sha() { sha256sum "$1" | cut -d' ' -f1; }
flush() { dd if=/dev/null of="$1" conv=notrunc,fsync 2>/dev/null; }
drop() { rm -f "$part" "$part.version" "$ranged" "$ranged.journal"; }
mark() { echo "$sum $(stat -c '%s %Y' "$path")" >"$stamp"; }
# Neither credentials nor signed queries belong in a message.
shown() { printf %s "$1" | sed 's,//[^/@]*@,//,; s,[?#].*,,'; }
quoted() {
  case $1 in
    *[\\\"[:cntrl:]]*) printf %s "$1" | tr -d '\r\n' | sed 's/[\\"]/\\&/g' ;;
    *) printf %s "$1" ;;
  esac
}
encoded() {
  printf %s "$1" | awk 'BEGIN { for (i = 1; i < 256; i++) code[sprintf("%c", i)] = sprintf("%%%02X", i) }
    { for (i = 1; i <= length($0); i++) { c = substr($0, i, 1); printf "%s", c ~ /[A-Za-z0-9._~\/-]/ ? c : code[c] } }'
}
no_space() {
  [ -n "$worker" ] || drop
  die 28 TransferOutOfSpace "the model cache has no room for the file (${free:-0} bytes were free); enlarge the claim or delete models"
}
not_writable() {
  where=$CACHE_DIR
  die 13 CacheNotWritable "uid $(id -u) cannot write here; check fsGroup and the volume"
}
mismatch() {
  die 65 ChecksumMismatch "its SHA-256 is $1, the Model says $sum; correct spec.sha256 or the file"
}

# All that belongs to one file hangs on its path and its address.
turn_to() {
  [ "$1" != "$file" ] || return 0
  file=$1 sum='' path=${MODEL_PATH:-} url=$MODEL_SOURCE total='' plain=''
  [ -z "$files" ] || path=$CACHE_DIR/$file url=$MODEL_SOURCE$(encoded "$file")
  [ "$file" != "$primary" ] || sum=${MODEL_SHA256:-}
  where=$(shown "$url") address=$(quoted "$url")
  base=${path%/*}/.${path##*/}
  part=$base.partial ranged=$base.ranged stamp=$base.sha256 rejected=$base.rejected origin=$base.source
}

# The published file is the wanted one. The stamp spares a second look at every byte of a file that has not changed.
in_place() {
  [ -f "$path" ] || return 1
  [ -n "$sum" ] || return 0
  [ "$(cat "$stamp" 2>/dev/null)" = "$sum $(stat -c '%s %Y' "$path")" ] && return 0
  [ "$(sha "$path")" = "$sum" ] && mark
}

# In place, and still what the source has, where that was asked for. A file with a sum is right whatever the source has.
current() {
  in_place || return 1
  [ "${REFRESH_POLICY:-}" = OnChange ] && [ -z "$sum" ] || return 0
  case $url in
    file://* | /*) look_at_host_file ;;
    *) probe && [ "$answer" != 416 ] ;;
  esac || {
    say "Keeping what is there: $where cannot be asked whether it changed: $why"
    return 0
  }
  [ -z "$total" ] || [ "$total" = "$(size "$path")" ] || return 1
  known=$(cat "$origin" 2>/dev/null)
  [ -z "$known" ] || [ -z "${known#* }" ] || [ -z "$identity" ] || [ "${known#* }" = "$identity" ]
}

look_at_host_file() {
  why='the node has no such file, or it cannot be read'
  [ -r "$host_file" ] || return 1
  total=$(size "$host_file") identity=$(stat -c %Y "$host_file")
}

owner() { cat "$lock/owner" 2>/dev/null; }

acquire() {
  last=none idle=0 told=''
  # The owner is written after the directory is made; should a taker have come in between, the lock is another's.
  until mkdir "$lock" 2>/dev/null && echo "$me" 2>/dev/null >"$lock/owner" && [ "$(owner)" = "$me" ]; do
    [ -d "$lock" ] || [ -w "$CACHE_DIR" ] || not_writable
    [ -n "$told" ] || say "Waiting: another pod is fetching $where"
    told=yes
    # Its owner lives while the heartbeat changes. Only our own clock counts the seconds: clocks of nodes differ.
    dead=$(owner) now=$dead/$(cat "$lock/beat" 2>/dev/null)
    if [ "$now" = "$last" ]; then idle=$((idle + poll)); else idle=0 last=$now; fi
    [ "$idle" -lt "$stale" ] || take_over
    sleep "$poll"
  done
  mkdir "$work"
  (
    n=0
    while sleep "$poll" && kill -0 ${$}; do
      # Whoever lost the lock must stop writing at once.
      case $(owner) in "$me") ;; '') [ -d "$lock" ] || kill ${$} ;; *) kill ${$} ;; esac
      n=$((n + 1))
      echo $n >"$lock/beat"
    done
  ) >/dev/null 2>&1 </dev/null &
  beat=$!
}

# Of all that wait for $dead, one removes its lock, and never the lock of an owner who came after it.
take_over() {
  turn=$lock.takeover.${dead:-nobody}
  [ "$idle" -lt $((stale * 3)) ] || rmdir "$turn" 2>/dev/null
  mkdir "$turn" 2>/dev/null || return 0
  if [ "$(owner)" = "$dead" ]; then
    say "Taking over: the pod that was fetching $where is gone"
    rm -rf "$lock"
  fi
  rmdir "$turn"
}

release() {
  hush
  [ -z "$beat" ] || kill -9 "$beat" 2>/dev/null
  [ "$(owner)" != "$me" ] || rm -rf "$lock"
  [ -z "$bundle" ] || rm -f "$bundle"
}

# What has arrived of the file under way: the blocks of a file with holes, the length of one without.
arrived() {
  if [ -f "$ranged" ]; then
    stat -c '%b %B' "$ranged" | awk -v most="$total" '{ n = $1 * $2; printf "%.0f", n < most ? n : most }'
  else
    size "$part"
  fi
}

report() {
  hush
  [ -n "$files" ] || whole=${total:-0}
  (
    while sleep "$tick" >/dev/null 2>&1 && kill -0 ${$} 2>/dev/null; do
      bytes=$((before + $(arrived)))
      say "progress $bytes $((whole == 0 || whole > bytes ? whole : bytes)) $file"
    done
  ) </dev/null &
  reporter=$!
}
# Not by TERM: a shell that has just begun still has the trap of its parent, and loses the signal.
hush() {
  [ -z "$reporter" ] || { kill -9 "$reporter" && wait "$reporter"; } 2>/dev/null
  reporter=''
}

copy() {
  look_at_host_file || die 66 SourceNotFound "$why"
  report
  room
  [ "$total" -le "$free" ] || no_space
  cp "$host_file" "$part" 2>"$work/errors" && [ "$total" -eq "$(size "$part")" ] && return
  ! grep -qi 'no space' "$work/errors" || no_space
  die 74 TransferFailed "copying stopped: $(tail -n 1 "$work/errors")"
}

# Becomes a curl whose address and credentials come on stdin: everybody on the node may read a command line.
ask() {
  exec curl --config - --fail --location --silent --show-error --globoff --proto =http,https --proto-redir =http,https \
    --connect-timeout 30 --speed-limit 1 --speed-time "$stall" "$@" <<END
$access
url = "$address"
END
}

# Gathers, out of what curl and the shell wrote of a request, one fact a line: of the last answer, after all redirects.
facts='
  { sub(/\r$/, "") }
  /^HTTP\// { split("", said); answer = $2 }
  /^curl: / { why = $0 }
  /^(exit|got) / { said[$1] = $2 }
  { colon = index($0, ":"); value = substr($0, colon + 1); sub(/^[ \t]*/, "", value); said[tolower(substr($0, 1, colon - 1))] = value }
  END {
    # An error has a page that may be larger than what was asked for; that is not what went wrong.
    if (answer >= 400) { said["exit"] = 22; why = "the server answered " answer }
    of = answer == 200 ? said["content-length"] : said["content-range"]
    sub(/.*\//, "", of)
    etag = said["etag"]
    changed = said["last-modified"]
    print answer; print said["exit"]; print said["got"]; print said["content-length"]; print said["content-range"]; print said["retry-after"]
    print of ~ /^[0-9]+$/ ? of : ""
    # Ranges of one file can be told from those of another by a strong tag or a time.
    print etag ~ /^"/ ? etag : changed
    print etag ? etag : changed
    print why
  }'
understand() {
  {
    read -r answer; read -r code; read -r got; read -r length; read -r range; read -r later
    read -r of; read -r seen; read -r identity; read -r why
  } <<END
$1
END
  code=${code:-2} why=${why:-curl ended with status ${code:-2}}
}

# Asks for one byte, which tells as much as HEAD does, of addresses signed for GET, too. Who sends more is cut off.
probe() {
  understand "$({
    {
      (ask --range 0-0 --max-filesize 1 --max-time "$stall" --dump-header /dev/fd/3 "$@") 2>&3
      echo "exit $?" >&3
    } | head -c 1 >/dev/null
  } 3>&1 | awk "$facts")"
  case $answer in 200 | 206 | 304 | 416) total=$of version=$seen ;; *) return 1 ;; esac
}

# Dies of what does not mend by itself.
judge() {
  case $code in
    22)
      case $answer in
        401 | 403) die 77 SourceUnauthorized "$why; it wants credentials, or a licence accepted" ;;
        404 | 410) die 66 SourceNotFound "$why" ;;
        408 | 425 | 429 | 5??) ;;
        *) die 76 TransferFailed "$why" ;;
      esac
      ;;
    63) no_space ;;
    23)
      for it in "$CACHE_DIR" "$part" "$ranged"; do [ ! -e "$it" ] || [ -w "$it" ] || not_writable; done
      no_space
      ;;
    51 | 58 | 60 | 77 | 83 | 91) die 78 SourceUntrusted "$why" ;;
    1 | 3) die 64 SourceInvalid "$why" ;;
  esac
}

# Waits before the next try, or gives up. Bytes that came ($1) restore the patience.
again() {
  if [ "$1" -gt 0 ]; then tries=0; else tries=$((tries + 1)); fi
  if [ "$tries" -ge 5 ]; then
    case $code in
      5 | 6 | 7 | 28 | 52 | 97) die 69 SourceUnreachable "$why" ;;
      35) die 78 SourceUntrusted "$why" ;;
      *) die 75 TransferFailed "$why" ;;
    esac
  fi
  say "Trying again: $where: $why"
  delay=$((pause << tries))
  case $later in '' | *[!0-9]* | ????*) ;; *) [ "$later" -le "$delay" ] || delay=$later ;; esac
  sleep "$delay"
}

fetch() {
  # The same file with the same wrong sum need not come again.
  known=''
  [ ! -f "$rejected" ] || known=$(sed -n "s/^$sum //p" "$rejected")
  set --
  [ -z "$known" ] || set -- --header "If-None-Match: ${known#* }"
  anew=0
  while :; do
    tries=0
    until probe "$@"; do
      judge
      again 0
    done
    [ "$answer" != 304 ] || mismatch "${known%% *}"
    report
    # What was begun in one stream goes on in one.
    if [ -z "$plain" ] && [ "$streams" -gt 1 ] && [ "$(size "$part")" -eq 0 ] && [ -n "$version" ] &&
      [ "$range" = "bytes 0-0/$total" ] && [ "$total" -ge "$parallel_from" ]; then
      fetch_ranges && return
    else
      fetch_stream
      return
    fi
  done
}

# Fetches what the partial file lacks in one stream, by as many requests as it takes.
fetch_stream() {
  rm -f "$ranged" "$ranged.journal"
  tries=0
  while :; do
    have=$(size "$part") version=$(cat "$part.version" 2>/dev/null)
    room
    set -- --max-filesize $((free > 0 ? free : 1)) --dump-header "$work/headers" --output "$part"
    resumed=''
    if [ "$have" -gt 0 ]; then
      set -- "$@" --continue-at "$have"
      [ -z "$version" ] || set -- "$@" --header "If-Range: $version"
      resumed=yes
    fi
    true >"$work/headers"
    ask "$@" 2>"$work/errors" &
    job=$!
    wait "$job"
    echo "exit $?" >>"$work/errors" || no_space
    job=''
    understand "$(awk "$facts" "$work/headers" "$work/errors")"
    case $answer in 200 | 206) version=$seen && echo "$version" >"$part.version" ;; esac
    got=$(size "$part") total=$of
    # Nothing is left to send, or our part is longer than the file. Versions of curl differ in what they call that.
    if [ "$answer" = 416 ] && [ "$have" -gt 0 ]; then
      [ "$got" != "$total" ] || return 0
      code=33
    fi
    case $code in
      0)
        [ -n "$total" ] && [ "$got" -ne "$total" ] || return 0
        [ "$got" -lt "$total" ] || drop
        why="$got of $total bytes came"
        ;;
      33)
        # The server sends no ranges, or the file changed meanwhile: from the start, then.
        drop
        [ "$have" -eq 0 ] || continue
        why="the server cannot send ranges"
        ;;
      *) judge ;;
    esac
    again $((got > have))
  done
}

# Fetches all chunks that the journal does not call done, in rounds; 1 if the file must be begun anew.
fetch_ranges() {
  # No worker should be idle, nor the last one keep the others waiting.
  step=$((total / streams / 512 * 512 + 512)) resumed=yes
  [ "$step" -lt "$chunk" ] || step=$chunk
  count=$(((total + step - 1) / step))
  if [ -f "$ranged" ] && [ "$(sed 1q "$ranged.journal" 2>/dev/null)" = "$total $step $version" ]; then
    # Closes a line that a crash may have cut.
    echo >>"$ranged.journal"
  else
    drop
    echo "$total $step $version" >"$ranged.journal"
  fi
  true >>"$ranged" || not_writable
  missing
  while [ -n "$todo" ]; do
    room
    [ $((total - $(arrived))) -le "$free" ] || no_space
    jobs='' n=1
    while [ "$n" -le "$streams" ]; do
      # Two are enough for a source that is fast; the others help where each connection is slow.
      [ "$n" -ne 3 ] || sleep "$ramp"
      work_off "$n" &
      jobs="$jobs $!" n=$((n + 1))
    done
    full=''
    for job in $jobs; do wait "$job" || [ $? -ne 28 ] || full=yes; done
    job='' jobs='' were=$todo
    [ -z "$full" ] || no_space
    if read -r status reason why 2>/dev/null <"$work/verdict"; then
      case $status in
        1) anew=$((anew + 1)) ;;
        2) anew=9 ;;
        *) die "$status" "$reason" "$why" ;;
      esac
      drop
      renew
      [ "$anew" -lt 3 ] || plain=yes
      say "Starting anew${plain:+ in one stream}: $where: $why"
      return 1
    fi
    missing
    if [ "$todo" = "$were" ]; then
      read -r status reason why <"$work/tired" || status=75 reason=TransferFailed why="no worker got anywhere"
      die "$status" "$reason" "$why"
    fi
    renew
  done
  [ "$(size "$ranged")" -eq "$total" ] || die 75 TransferFailed "$(size "$ranged") of $total bytes came"
  echo "$version" >"$part.version"
  mv -f "$ranged" "$part"
  rm -f "$ranged.journal"
}

renew() { rm -rf "$work" && mkdir "$work"; }
missing() {
  todo=$(awk -v count="$count" '/^[0-9]+ done$/ { done[$1] } END { for (n = 0; n < count; n++) if (!(n in done)) print n }' "$ranged.journal")
}

# One of the workers: takes a chunk that nobody has taken, until none is left. A claim is a file that only one can make.
work_off() {
  worker=$1
  set -C
  trap '[ -z "$job" ] || kill "$job"; exit 1' TERM
  job=''
  for n in $todo; do
    { true >"$work/claim.$n"; } 2>/dev/null || continue
    at=$((n * step)) end=$((n * step + step)) tries=0
    [ "$end" -le "$total" ] || end=$total
    while [ "$at" -lt "$end" ]; do
      [ ! -e "$work/verdict" ] || exit 1
      fetch_range
    done
    # The journal may only tell of bytes that a crash cannot take away.
    flush "$ranged" || no_space
    echo "$n done" >>"$ranged.journal"
  done
}

# Fetches bytes $at to $end, or some of them, into their place, and never beyond it, whatever the server sends.
fetch_range() {
  heads=$work/headers.$worker errs=$work/errors.$worker
  true >|"$heads"
  (
    ulimit -f $(((end + 511) / 512))
    dd bs=1 count=0 seek="$at" 2>/dev/null
    ask --range "$at-$((end - 1))" --max-filesize $((end - at)) --no-buffer --dump-header "$heads" --write-out '%{stderr}got %{size_download}\n'
  ) 1<>"$ranged" 2>|"$errs" &
  job=$!
  wait "$job"
  echo "exit $?" >>"$errs" || no_space
  job=''
  understand "$(awk "$facts" "$heads" "$errs")"
  case $answer in
    206)
      [ "$of $seen" = "$total $version" ] || die 1 Changed "it changed while it was fetched"
      [ "$range $length" = "bytes $at-$((end - 1))/$total $((end - at))" ] || die 2 Lies "the server answered another range than was asked for"
      [ "$code" -ne 0 ] || got=$((end - at))
      ;;
    200 | 416)
      [ "$of $seen" = "$total $version" ] || die 1 Changed "it changed while it was fetched"
      die 2 Lies "the server stopped sending ranges"
      ;;
    *) got=0 ;;
  esac
  at=$((at + ${got:-0}))
  [ "$code" -ne 0 ] || return 0
  judge
  again "${got:-0}"
}

obtain() {
  [ -d "${path%/*}" ] || mkdir -p "${path%/*}" || not_writable
  while :; do
    case $url in
      file://* | /*) resumed='' version='' && copy ;;
      *) fetch ;;
    esac
    [ -n "$sum" ] || break
    actual=$(sha "$part")
    [ "$actual" != "$sum" ] || break
    drop
    # Parts of different files make a wrong whole; only a download in one piece is proof against its source.
    plain=yes
    [ -z "$resumed" ] || continue
    case $version in '"'*) echo "$sum $actual $version" >"$rejected" ;; esac
    mismatch "$actual"
  done
  [ "$(owner)" = "$me" ] || die 75 TransferFailed "another pod took over"
  flush "$part" || no_space
  mv -f "$part" "$path" || die 74 TransferFailed "it cannot be put in place"
  rm -f "$part.version" "$rejected"
  [ -z "$sum" ] || mark
  echo "$(size "$path") $identity" >"$origin"
  hush
  say "Fetched $where: $(size "$path") bytes"
}

# --- What is asked for ----------------------------------------------------------------------------------------------
where=$(shown "${MODEL_SOURCE:-}")
region=${AWS_REGION:-us-east-1}
if [ -n "${S3_BUCKET:-}" ]; then
  key=${S3_KEY:-}
  [ -z "$files" ] || key=${S3_PREFIX:+${S3_PREFIX%/}/}
  [ -n "$key$files" ] || die 64 SourceInvalid "no key of the bucket is named"
  case $region in cn-*) domain=amazonaws.com.cn ;; *) domain=amazonaws.com ;; esac
  MODEL_SOURCE=${AWS_ENDPOINT_URL:-https://s3.$region.$domain} MODEL_SOURCE=${MODEL_SOURCE%/}/$(encoded "$S3_BUCKET/$key")
  where=$(shown "$MODEL_SOURCE")
fi
primary=${files%%"$newline"*} home=$CACHE_DIR/.files
if [ -z "$files" ]; then
  primary=${MODEL_PATH##*/} home=$CACHE_DIR/.${MODEL_PATH##*/}
else
  case $MODEL_SOURCE in file://* | /*) die 64 SourceInvalid "a set of files needs a remote source" ;; esac
  case $newline$files$newline in
    *"$newline$newline"* | *"$newline/"* | *"/$newline"* | *[/"$newline"]..[/"$newline"]* | *[/"$newline"].[/"$newline"]* | *//* | *\\*) bad=yes ;;
    *) bad=$(printf %s "$files" | tr -d '\n' | tr -dc '\001-\037\177') ;;
  esac
  [ -z "$bad" ] || die 64 SourceInvalid "a file of the set is empty, absolute, or has \`..\`, a backslash or a control character in its path"
  MODEL_SOURCE=${MODEL_SOURCE%/}/
fi
lock=$home.lock work=$home.lock/$me

# --- What gives access ----------------------------------------------------------------------------------------------
access='' token=${SOURCE_TOKEN:-}
if [ -n "${HF_TOKEN:-}" ]; then
  host=$(printf %s "$MODEL_SOURCE" | tr '[:upper:]' '[:lower:]') scheme=${host%%://*}
  host=${host#*://} host=${host%%[/?#]*} host=${host##*@}
  case $scheme://${host%:*} in https://huggingface.co | https://hf.co | https://*.hf.co) token=$HF_TOKEN ;; esac
  case ${HUB_HOST:-} in '') ;; "$host" | "${host%:*}") token=$HF_TOKEN ;; esac
fi
if [ -n "${S3_BUCKET:-}" ]; then
  # S3 wants the sum of the body signed, which is that of nothing here; not every curl thinks of it.
  [ -z "${AWS_ACCESS_KEY_ID:-}" ] || access="aws-sigv4 = \"aws:amz:$region:s3\"${newline}user = \"$(quoted "$AWS_ACCESS_KEY_ID:${AWS_SECRET_ACCESS_KEY:-}")\"
header = \"x-amz-content-sha256: $(sha /dev/null)\""
  [ -z "${AWS_SESSION_TOKEN:-}" ] || access="$access${newline}header = \"X-Amz-Security-Token: $(quoted "$AWS_SESSION_TOKEN")\""
elif [ -n "$token" ]; then
  access="header = \"Authorization: Bearer $(quoted "$token")\""
fi
bundle='' certificates=${CA_DIR:-/custom-certs}

# --- How it goes ----------------------------------------------------------------------------------------------------
IFS=$newline
set -f
# shellcheck disable=SC2086
set -- ${files:-$primary}
unset IFS
set +f
if [ -d "$certificates" ]; then
  bundle=$(mktemp 2>/dev/null) || bundle=$CACHE_DIR/.ca.$me
  mkdir -p "$CACHE_DIR"
  cat "${CURL_CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}" "$certificates"/* >"$bundle"
  export CURL_CA_BUNDLE="$bundle"
fi
lacking=''
for name; do
  turn_to "$name"
  current || lacking=yes
done
trap release EXIT
[ -n "$lacking" ] || exit 0
mkdir -p "$CACHE_DIR" || not_writable
trap 'kill $job $jobs 2>/dev/null; die 143 TransferFailed "stopped"' TERM INT HUP
acquire
if [ $# -gt 1 ]; then
  for name; do
    turn_to "$name"
    if in_place; then total=$(size "$path"); else probe; fi
    whole=$((whole + ${total:-0}))
  done
fi
lacking=''
for name; do
  turn_to "$name"
  current || {
    obtain
    lacking=yes
  }
  before=$((before + $(size "$path")))
done
[ -z "$lacking" ] || say "progress $before $before -"
