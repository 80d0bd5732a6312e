# Removes the file $1, if it is there. Follows `enter.sh`.
[ -d "$(dirname "$1")" ] || exit 0
enter "$(dirname "$1")" '' && rm -f -- "./$(basename "$1")"
