# Prints the value of a secret variable that the host's owner put into the file $1/$2/$3/$4, at most $6 bytes.
# $5: the connection's user by number. Ends with 44 where there is no such file, with 45 where it may not be used.
path=$1
# `ls -ldn` is POSIX, stat is not.
# shellcheck disable=SC2046  # words of ls
look() { set -- $(LC_ALL=C ls -ldn -- "$path") && mode=$1 links=$2 owner=$3; }
refuse() {
  printf '%s\n' "$path $1" >&2
  exit 45
}
owned() {
  [ "$owner" = 0 ] || [ "$owner" = "$1" ] || refuse "belongs neither to root nor to the user of the connection"
}
for part in "$2" "$3" "$4"; do
  [ -e "$path" ] || [ -L "$path" ] || exit 44
  look || exit 1
  case $mode in
    *+) refuse "has an access control list; remove it" ;;
    d????-??-*) owned "$5" ;;
    d*) refuse "may be written by others; chmod go-w" ;;
    *) refuse "is a link, or no directory" ;;
  esac
  path=$path/$part
done
[ -e "$path" ] || [ -L "$path" ] || exit 44
look || exit 1
case $mode in
  -???------|-???------[.@]) owned "$5" ;;
  -*) refuse "may be read by others; chmod 600" ;;
  *) refuse "is a link, or no plain file" ;;
esac
[ "$links" = 1 ] || refuse "has a second name by a hard link"
head -c "$6" "$path"
