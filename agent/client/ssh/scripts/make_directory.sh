# Makes the directory $1 with the mode $2 and, unless $3 is empty, the owner $3. Follows `enter.sh`.
enter "$1" make && { [ -z "$3" ] || chown "$3" .; } && chmod "$2" .
