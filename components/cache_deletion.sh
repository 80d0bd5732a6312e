# Deletes directories of the model cache $1, whose names follow, and none in which a download is under way.
cd "$1" || exit 1
shift
rm -rf .herdsman-trash.*
for key; do
  [ -d "$key" ] || { echo "gone $key"; continue; }
  if [ -n "$(find "$key" -path '*.lock/*' -mmin -10 2>/dev/null | head -n 1)" ]; then
    echo "busy $key"
  # The name goes first, in one step: a pod that starts now finds no half of a directory, but none.
  elif mv "$key" ".herdsman-trash.$key" && rm -rf ".herdsman-trash.$key"; then
    echo "deleted $key"
  else
    echo "failed $key"
  fi
done
echo end
