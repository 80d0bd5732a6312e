"""Services of every dialect that run as processes on hosts, and the custom resources Host and HostProcess."""
