# Brings one file to a host: whole, verified, resumed where it was cut. POSIX sh and curl, on Linux and macOS.
# Runs by itself, cut loose from the SSH connection that started it; `fetch` reads what it leaves in the job's folder.
# `fetch` writes these variables in front of the script, because everybody may read a command line:
#   file     the file. source: its address. sum: its SHA-256, or empty. size: its bytes, or empty.
#   guarded  `yes`: only public addresses are dialled, and those below. Otherwise curl dials what it likes.
#   private  networks that are not public, as `4:` or `6:` and the bits that their addresses begin with
#   allowed  networks that may be dialled all the same. names: hosts of which every address may be.
# $1 is `locked` once the script holds its lock.
#   <folder>/.<name>.fetch/lock     held by the one that fetches
#   <folder>/.<name>.fetch/run.*    the script that runs
#   <folder>/.<name>.fetch/part     what has arrived
#   <folder>/.<name>.fetch/total    bytes of the whole, as the server said
#   <folder>/.<name>.fetch/failed   "<Reason> <message>" of the last try, if it ended badly
# shellcheck disable=SC2154  # the variables above
set -u
LC_ALL=C PATH="$PATH:/opt/homebrew/bin:/usr/local/bin"
export LC_ALL PATH
umask 077
job=$(dirname "$file")/.$(basename "$file").fetch
part=$job/part
bytes() { if [ -f "$1" ]; then wc -c <"$1" | tr -d ' '; else echo 0; fi; }
die() {
  printf '%s\n' "$1 $2" >"$job/failed"
  exit 1
}
# Of two that start at once one gets the lock. The kernel frees it when its holder ends, however that ends.
if [ "${1:-}" != locked ]; then
  if command -v lockf >/dev/null; then
    exec lockf -k -s -t 2 "$job/lock" sh "$0" locked
  fi
  exec 9>>"$job/lock"
  # `fetch` holds the lock for a moment to see whether it is free, several times a second.
  tries=0
  until flock -n 9; do
    tries=$((tries + 1))
    [ "$tries" -lt 5 ] || exit 0
    sleep 1
  done
fi
rm -f "$job/failed" "$job/pid"
for other in "$job"/run.*; do [ "$other" = "$0" ] || rm -f "$other"; done
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

# Splits $url into scheme and host. Programs read other addresses than these differently.
take_apart() {
  case $url in
    http://* | https://*) ;;
    *) die SourceRefused "it redirects to an address that is neither http nor https" ;;
  esac
  case $url in *[!!-~]* | *\\*) die SourceRefused "it redirects to an address with a backslash or a control character" ;; esac
  authority=${url#*://} authority=${authority%%[/?#]*}
  case $authority in
    *@*) die SourceRefused "it redirects to an address with a user or a password in front of its host" ;;
    \[*\] | \[*\]:*) host=${authority#\[} host=${host%%\]*} port=${authority##*\]} ;;
    *) host=${authority%%:*} port=${authority#"$host"} ;;
  esac
  case $host in '' | *[!A-Za-z0-9:._-]*) die SourceRefused "it redirects to an address that names no host" ;; esac
  case ${port#:} in *[!0-9]*) die SourceRefused "it redirects to an address whose port is no number" ;; esac
  host=$(printf %s "${host%.}" | tr '[:upper:]' '[:lower:]')
}
# Prints the IP addresses of a host, one a line.
resolved() {
  case $1 in
    *:*) printf '%s\n' "$1" ;;
    *[!0-9.]*)
      if command -v getent >/dev/null; then
        getent ahosts "$1" | awk '{ print $1 }'
      elif command -v dscacheutil >/dev/null; then
        dscacheutil -q host -a name "$1" | awk '/^ip(v6)?_address:/ { print $2 }' | sort
      fi | sed 's/%.*//' | awk '!seen[$0]++'
      ;;
    *) printf '%s\n' "$1" ;;
  esac
}
# Prints those of the addresses on stdin that may be dialled.
judged() {
  for name in $names; do
    [ "$name" != "$host" ] || private=''
  done
  awk -v private="$private" -v allowed="$allowed" '
    function bits(n, width, out) { out = ""; while (width-- > 0) { out = (n % 2) out; n = int(n / 2) } return out }
    function of_group(text, out, i) {
      if (length(text) > 4) return "x"
      out = ""
      for (i = 1; i <= length(text); i++) out = out bits(index("0123456789abcdef", tolower(substr(text, i, 1))) - 1, 4)
      return substr("0000000000000000", length(out) + 1) out
    }
    function of_groups(text, out, n, i, group) {
      out = ""
      n = split(text, group, ":")
      for (i = 1; i <= n; i++) out = out of_group(group[i])
      return out
    }
    function of_quad(text, out, i, part) {
      if (split(text, part, ".") != 4) return "x"
      out = ""
      for (i = 1; i <= 4; i++) {
        if (part[i] !~ /^[0-9]+$/ || part[i] + 0 > 255) return "x"
        out = out bits(part[i] + 0, 8)
      }
      return out
    }
    function binary(address, at, quad, left, right, out) {
      if (address !~ /:/) return "4:" of_quad(address)
      quad = ""
      if (match(address, /[0-9]+\.[0-9.]+$/)) {
        quad = of_quad(substr(address, RSTART))
        address = substr(address, 1, RSTART - 1)
        if (address !~ /::$/) sub(/:$/, "", address)
      }
      if (address !~ /^[0-9a-fA-F:]*$/) return "6:x"
      at = index(address, "::")
      if (at) {
        left = of_groups(substr(address, 1, at - 1))
        right = of_groups(substr(address, at + 2)) quad
        out = left
        while (length(out) + length(right) < 128) out = out "0"
        out = out right
      } else out = of_groups(address) quad
      # An IPv4 address in IPv6 clothes is dialled as what it is.
      if (index(out, mapped) == 1) return "4:" substr(out, 97)
      return "6:" out
    }
    function begins(text, prefixes, n, i, prefix) {
      n = split(prefixes, prefix, " ")
      for (i = 1; i <= n; i++) if (index(text, prefix[i]) == 1) return 1
      return 0
    }
    BEGIN { mapped = ""; while (length(mapped) < 80) mapped = mapped "0"; mapped = mapped "1111111111111111" }
    {
      address = binary($1)
      if (address !~ /^(4:[01]+|6:[01]+)$/ || length(address) != (address ~ /^4/ ? 34 : 130)) next
      if (!begins(address, private) || begins(address, allowed)) print $1
    }'
}
# Asks curl; the address comes on stdin, because everybody may read a command line. $ip, if any, is what it dials,
# whatever host it finds in the address.
ask() {
  if [ "$guarded" = yes ]; then
    case $ip in *:*) set -- --connect-to "::[$ip]:" "$@" ;; *) set -- --connect-to "::$ip:" "$@" ;; esac
    # A proxy, or a redirect that the user's .curlrc follows, would lead past the guard.
    set -- -q --noproxy '*' "$@"
  fi
  curl "$@" --silent --show-error --globoff --proto '=http,https' --connect-timeout 20 --config - <<END 2>"$job/words"
url = "$(printf %s "$url" | sed 's/[\\"]/\\&/g')"
END
}

# Each hop is judged before anything is sent to it, and what was judged is dialled, for the file itself, too.
hop=0 url=$source
while :; do
  take_apart
  candidates=any
  if [ "$guarded" = yes ]; then
    found=$(resolved "$host")
    [ -n "$found" ] || die SourceUnreachable "$host does not resolve"
    candidates=$(printf '%s\n' "$found" | judged | head -n 3)
    [ -n "$candidates" ] || die SourceRefused "${url%%://*}://$authority leads to $(printf %s "$found" | tr '\n' ' '), which is not a public address; an operator can allow it with --allowed-remote-hosts"
  fi
  for ip in $candidates; do
    answer=$(ask --max-time 60 --range 0-0 --output /dev/null --dump-header "$job/headers" --max-filesize 1048576 \
      --write-out '%{http_code} %{redirect_url}')
    status=$?
    case $status in 7 | 28) ;; *) break ;; esac
  done
  code=${answer%% *} next=${answer#* }
  case ${code:=000} in
    30[12378])
      hop=$((hop + 1))
      if [ $hop -gt 8 ] || [ -z "$next" ]; then die SourceUnexpected "it redirects without end"; fi
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
if [ -z "$version" ] || [ "$(cat "$job/version" 2>/dev/null)" != "$version" ]; then rm -f "$part"; fi
printf '%s\n' "$version" >"$job/version"
case $total in '' | *[!0-9]*) total=${size:-} ;; esac
printf '%s\n' "${total:-}" >"$job/total"
free=$(($(df -Pk "$job" | awk 'END { print $4 }') * 1024))
if [ -n "$total" ]; then
  [ $((total - $(bytes "$part"))) -le "$free" ] || die NoSpace "$free bytes are free, the file has $total"
  most=$total
else
  # Nobody says how long it is; the rest of the disk belongs to others.
  # shellcheck disable=SC2017  # multiplied first, a large disk would not fit into 32 bits
  most=$(($(bytes "$part") + free / 10 * 9))
fi
if [ "$(bytes "$part")" != "${total:-none}" ]; then
  # The shell counts in blocks of 512 bytes.
  (ulimit -f $((most / 512 + 1)) && ask --fail --speed-limit 1 --speed-time 60 --continue-at - --output "$part")
  status=$?
  case $status in
    0) ;;
    33) rm -f "$part"; die SourceUnreachable "the server sends no ranges; starting anew" ;;
    23 | 153)
      if [ -n "$total" ] && [ "$(bytes "$part")" -gt "$total" ]; then
        rm -f "$part"
        die SizeMismatch "it has more than the $total bytes that were promised"
      fi
      [ -n "$total" ] || rm -f "$part"
      die NoSpace "the file cannot be written: $(tr '\n' ' ' <"$job/words")"
      ;;
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
