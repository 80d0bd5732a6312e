"""The curl line that sends a request to a service. Pure. Used by `deploy` and `open`."""

from __future__ import annotations

import json
import shlex

from automation.places.place import Reached


def curl_line(reached: Reached, *, mode: str = "chat") -> str:
    """Return a command for a POSIX shell. A key is not in it: the shell's history would keep it."""
    body: dict[str, object] = {"model": reached.model}
    if mode == "embedding":
        path, body["input"] = "embeddings", "Hello"
    else:
        path, body["messages"] = "chat/completions", [{"role": "user", "content": "Hello"}]
    words = ["curl", f"{reached.base_url}/{path}", "-H", "Content-Type: application/json"]
    if reached.ca_file:
        words += ["--cacert", reached.ca_file]
    line = shlex.join([*words, "-d", json.dumps(body)])
    return f'{line} -H "Authorization: Bearer $KEY"' if reached.key else line
