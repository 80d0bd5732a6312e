"""Hashes include the downloader's version and not its text, at any place of an object."""

from __future__ import annotations

import hashlib
import json
import re

from components.downloader import SCRIPT_VERSION, download_script
from components.drain import drain_script
from components.rendered import fingerprint_of
from components.scripts import script_without_comments


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def test_the_text_of_the_script_does_not_count() -> None:
    assert SCRIPT_VERSION == 1, "a raised version restarts every pod with a downloader: say so in the change log"
    first_release = script_without_comments("model_download.v1.sh")
    assert download_script() != first_release
    now, then = ({"initContainers": [{"command": ["sh", "-c", text]}]} for text in (download_script(), first_release))
    assert fingerprint_of(now) == fingerprint_of(then) == hashlib.sha256(canonical(then).encode()).hexdigest()[:16]


def test_everything_else_counts() -> None:
    script = download_script()
    assert fingerprint_of(["sh", script]) != fingerprint_of(["bash", script])
    assert fingerprint_of(script) != fingerprint_of(script + "exit 0\n")


def test_kubernetes_leaves_the_downloader_as_it_is() -> None:
    # In a container's command, Kubernetes replaces `$$` by `$`, and `$(NAME)` by an environment variable.
    script = download_script()
    assert "$$" not in script
    assert not re.search(r"\$\([A-Z_][A-Z0-9_]*\)", script)


def test_scripts_travel_without_their_comments() -> None:
    for script in (download_script(), drain_script()):
        assert not any(line.startswith("#") for line in script.splitlines())
