"""What a read of asyncio costs in a process that has imported nothing but the proxy."""

from __future__ import annotations

import subprocess
import sys

READS = 500
_PROGRAM = f"""
import resource, socket
from agent.proxy.server import Proxy

proxy = Proxy()
proxy.start()
one, other = socket.socketpair()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({READS}):
    one.send(b"data: token")
    other.recv(256 * 1024)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
proxy.stop()
"""


def test_a_read_gets_no_memory_from_the_kernel() -> None:
    """Else each read has two page faults, for a block that the kernel gave and takes back."""
    told = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True).stdout
    assert int(told) < READS / 5
