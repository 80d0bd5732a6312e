# Prints kind, mode, owner and size of the path $1. Ends with 44 where there is no such path.
[ -e "$1" ] || exit 44
if [ -f "$1" ]; then k='file'; elif [ -d "$1" ]; then k='directory'; else k='other'; fi
stat -L -c "$k %a %U %s" "$1" 2>/dev/null || stat -L -f "$k %Lp %Su %z" "$1"
