# Functions with which root enters a directory. A path below a user's directory is that user's: a link planted there
# would lead what root does elsewhere. So root goes from directory to directory, as `agent.steps.directories` does, and
# changes only the one that it stands in.
# shellcheck disable=SC2046,SC2086  # words of ls, and none of them has a blank
refuse() {
  printf '%s\n' "$1 is a symbolic link that another user than root can point elsewhere" >&2
  exit 1
}
# Whether others than root may change the directory.
others() {
  set -- $(LC_ALL=C ls -ldn .)
  case $3,$1 in 0,?????w* | 0,????????w*) return 0 ;; 0,*) return 1 ;; esac
}
# Whether root owns the entry $1.
roots() { set -- $(LC_ALL=C ls -ldn "./$1") && [ "$3" = 0 ]; }
# Goes into the directory $1; $2 `make`: makes what is missing.
enter() {
  if [ "$(id -u)" != 0 ]; then
    [ "$2" != make ] || [ -d "$1" ] || (umask 022 && mkdir -p -- "$1") || return
    cd -- "$1" || return
    return
  fi
  cd / && rest=${1#/} links=0 || return
  while [ -n "$rest" ]; do
    name=${rest%%/*}
    case $rest in */*) rest=${rest#*/} ;; *) rest='' ;; esac
    case $name in '' | .) continue ;; esac
    before=$(pwd -P)
    if [ -L "./$name" ]; then
      links=$((links + 1))
      if [ "$links" -gt 40 ] || ! roots "$name" || others; then refuse "${before%/}/$name"; fi
      to=$(readlink "./$name")
      case $to in /*) cd / || return ;; esac
      rest=${to#/}${rest:+/$rest}
      continue
    fi
    [ "$2" != make ] || [ -e "./$name" ] || (umask 022 && mkdir "./$name") || return
    cd -P "./$name" || return
    # It may have become a link since it was looked at.
    [ "$name" = .. ] || [ "$(pwd -P)" = "${before%/}/$name" ] || refuse "${before%/}/$name"
  done
}
