# Prints a line for each directory of the model cache $1: name, KiB, files, when it last changed, and whether a download
# is under way in it.
cd "$1" || exit 1
for dir in */; do
  [ -d "$dir" ] || continue
  name=${dir%/}
  case $name in lost+found) continue ;; esac
  busy=0
  [ -z "$(find "$name" -path '*.lock/*' -mmin -10 2>/dev/null | head -n 1)" ] || busy=1
  size=$(du -sk "$name" 2>/dev/null | cut -f1)
  files=$(find "$name" -type f ! -name '.*' ! -path '*/.*' 2>/dev/null | wc -l)
  printf '%s\n' "cache $name ${size:-0} $files $(stat -c %Y "$name") $busy"
done
echo end
