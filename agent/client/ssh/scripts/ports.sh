# Prints the ports that are listened on, as `hex N` or `dec N`, on Linux and on macOS.
if [ -r /proc/net/tcp ]; then cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
  awk '$4 == "0A" { n = split($2, a, ":"); print "hex " a[n] }'
else netstat -an -p tcp | awk '/LISTEN/ { n = split($4, a, "."); print "dec " a[n] }'; fi
