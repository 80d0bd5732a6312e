# Keeps an idle Mac awake as long as the process $1 runs. Does nothing where that is done already, or cannot be.
command -v caffeinate >/dev/null || exit 0
! pgrep -fx "caffeinate -i -w $1" >/dev/null || exit 0
nohup caffeinate -i -w "$1" >/dev/null 2>&1 </dev/null &
