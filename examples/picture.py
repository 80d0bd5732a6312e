"""`make picture`: draws docs/pictures/terminal.svg from commands that run against the demo.

Runs each command of `SESSION` in a pseudo-terminal, so that it prints what a person sees, colours included. The rich
package turns the output into an SVG. The demo must be running. At the end the script deletes the service that the
commands applied.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import io
import json
import os
import pty
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agent.server.host_facts import own_address
from examples.demo import NAMESPACE, default_directory
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from tools.localcluster import LocalCluster
from tools.toolchain import locate

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "terminal.svg"
EXAMPLE = Path(__file__).parent / "02-pods-on-cpu" / "service.yaml"
SERVICE, MODEL = "chat", "qwen3-8b"
SESSION = (
    "herdsman describe first",
    "herdsman top --once",
    "kubectl apply -f chat.yaml",
    "sed -i.bak 's/contextSize: 8192/contextSize: 16384/' chat.yaml",
    "herdsman preview -f chat.yaml",
)
"""The commands of the picture. `first` is the demo's service; chat.yaml is a copy of `EXAMPLE`."""
WIDTH = 92
DOCUMENTED_ADDRESS = "192.0.2.2"
"""An address for documentation (RFC 5737), shown instead of this machine's address."""
_TIMEOUT_S = 180.0

# Rich's template without the fonts that it loads from the network.
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class PictureFailed(Exception):
    """The picture cannot be drawn; the message gives the cause and the remedy."""


def draw(directory: Path, picture: Path) -> None:
    """Run the session against the demo in `directory` and write the picture.

    Raises:
        PictureFailed: the demo does not run, a command failed, or the loop made nothing in time.
    """
    cluster = LocalCluster(directory / "cluster")
    if not cluster.kubeconfig.is_file():
        raise PictureFailed(f"no demo runs in {directory}; start it with `make demo`")
    programs = {"herdsman": Path(sys.executable).with_name("herdsman"), "kubectl": locate("kubectl")}
    client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    recorder = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(EXAMPLE, folder / "chat.yaml")
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "TERM": "xterm-256color"}
        for variable in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(variable, None)
        try:
            measured = functools.partial(_measured, programs["herdsman"], environment)
            # An agent measures once a minute, and each question is a process.
            _await(measured, "the agent to measure the process", pause_s=5.0)
            for command in SESSION:
                words = shlex.split(command)
                output = _in_terminal([str(programs.get(words[0], words[0])), *words[1:]], folder, environment)
                recorder.print(Text(f"$ {command}", style="bold"))
                recorder.print(Text.from_ansi(_cleaned(output)))
                if words[0] == "kubectl":
                    _await(lambda: _settled(client), "the loop to make the Deployment")
        finally:
            delete = [str(programs["kubectl"]), "delete", "--ignore-not-found", "-f", "chat.yaml"]
            subprocess.run(delete, cwd=folder, env=environment, check=True, capture_output=True)
            client.close()
    picture.parent.mkdir(parents=True, exist_ok=True)
    drawn = recorder.export_svg(title="herdsman", code_format=_SVG, unique_id="terminal")
    picture.write_text("\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n", "utf-8")


def _in_terminal(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Return the output of a command that runs in a terminal of `WIDTH` columns; 2 is the exit code of a preview."""
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        read = bytearray()
        try:
            while chunk := os.read(ours, 65536):
                read += chunk
        except OSError:
            pass  # Linux reports EIO when the last process has closed the terminal.
        finally:
            os.close(ours)
    if process.returncode not in (0, 2):
        raise PictureFailed(f"`{shlex.join(command)}` ended with exit code {process.returncode}:\n{read.decode()}")
    return read.decode()


def _cleaned(output: str) -> str:
    lines = [line.rstrip() for line in output.replace("\r", "").replace(own_address(), DOCUMENTED_ADDRESS).split("\n")]
    text = "\n".join(lines).strip("\n")
    return f"{text}\n" if text else ""


def _measured(herdsman: Path, environment: dict[str, str]) -> bool:
    top = subprocess.run([herdsman, "top", "-o", "json"], env=environment, check=True, capture_output=True, text=True)
    return any(row["memoryBytes"] and row["tokensPerSecond"] is not None for row in json.loads(top.stdout)["services"])


def _settled(client: KubeClient) -> bool:
    """Return whether the loop has made the Deployment and has tried to read the Model's header."""
    try:
        client.get(kinds.DEPLOYMENTS, NAMESPACE, SERVICE)
        model = client.get(kinds.MODELS, NAMESPACE, MODEL)
    except NotFound:
        return False
    return any(each["type"] == "SourceVerified" for each in model.get("status", {}).get("conditions") or ())


def _await(check: Callable[[], bool], what: str, *, pause_s: float = 0.5) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not check():
        if time.monotonic() > deadline:
            raise PictureFailed(f"waited {_TIMEOUT_S:.0f} s for {what}; `make demo` names the loop's log")
        time.sleep(pause_s)


def main(arguments: list[str] | None = None) -> int:
    """Draw the picture; returns 0, or 1 after an error message."""
    parser = argparse.ArgumentParser(prog="python -m examples.picture", description=__doc__)
    parser.add_argument("--dir", type=Path, default=default_directory(), help="the directory of the demo")
    parser.add_argument("-o", "--output", type=Path, default=PICTURE, help="the SVG to write")
    options = parser.parse_args(arguments)
    try:
        draw(options.dir.expanduser().resolve(), options.output)
    except PictureFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(f"Wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
