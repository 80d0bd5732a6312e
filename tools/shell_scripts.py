"""Checks all shell scripts of a checkout with shellcheck. Called by `make lint`: `python -m tools.shell_scripts`.

Scripts that pods run are part of pod templates, and a comment for shellcheck would change a template's hash. So this
module lists their exclusions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

NOT_ASKED: Mapping[str, tuple[str, ...]] = {
    # Kubernetes sets HOSTNAME in each container; the `$` in single quotes is for awk.
    "components/model_download.sh": ("SC3028", "SC2016"),
    "components/model_download.v1.sh": ("SC3028",),
    # `name= other=` sets empty variables, `test && test || break` ends the shell's loop unless both hold, and the
    # commas belong to vLLM's JSON.
    "program/dialects/kserve/presets/serve-vllm.sh": ("SC1007", "SC2015", "SC2054"),
}
"""Codes of shellcheck that are excluded, by script."""
BASH = frozenset({"program/dialects/kserve/presets/serve-vllm.sh"})
"""Scripts for bash without a first line `#!`; all other scripts are POSIX sh."""
_ACTION = re.compile(r"\{\{-?\s*(\w*)[^}]*\}\}")
_CONTROL = {"if": "if true; then", "with": "if true; then", "else": "else", "end": "fi"}
HINT = "install it: `apt-get install shellcheck` on Debian and Ubuntu, `brew install shellcheck` on macOS"


def scripts(root: Path) -> list[Path]:
    """Return the scripts that git tracks or would add, sorted."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = [root / name for name in sorted(set(names)) if name.endswith(".sh") or name.startswith(".ci/")]
    return [path for path in paths if path.is_file()]


def without_templates(text: str) -> str:
    """Return a script with the actions of Go templates as shell: conditions become `if`, values become a word."""
    return "\n".join(_line_without_templates(line) for line in text.split("\n"))


def _line_without_templates(line: str) -> str:
    alone = _ACTION.fullmatch(line.strip()) is not None

    def shell(action: re.Match[str]) -> str:
        control = _CONTROL.get(action.group(1))
        if control is None:
            return "word"
        return control if alone or control.startswith("if") else f"; {control}"

    return _ACTION.sub(lambda action: f"{shell(action)} " if action.group(1) in _CONTROL else shell(action), line)


def complaints(path: Path, name: str) -> str:
    """Return shellcheck's findings in a script; empty for none. Raises FileNotFoundError without shellcheck."""
    text = path.read_text(encoding="utf-8")
    shell = "bash" if name in BASH or text.partition("\n")[0].endswith("bash") else "sh"
    left_out = [f"--exclude={','.join(NOT_ASKED[name])}"] if name in NOT_ASKED else []
    command = ["shellcheck", "--format=gcc", "--norc", f"--shell={shell}", *left_out, "-"]
    told = subprocess.run(command, input=without_templates(text), capture_output=True, text=True)
    return (told.stdout + told.stderr).replace("-:", f"{name}:").strip() if told.returncode else ""


def main() -> int:
    """Check all scripts of the checkout; returns the exit code."""
    root = Path(__file__).resolve().parents[1]
    if shutil.which("shellcheck") is None:
        print(f"shellcheck is missing, and `make lint` checks shell scripts with it; {HINT}", file=sys.stderr)
        return 1
    found = scripts(root)
    told = [each for path in found if (each := complaints(path, path.relative_to(root).as_posix()))]
    print("\n".join(told) if told else f"shellcheck found nothing in {len(found)} scripts")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
