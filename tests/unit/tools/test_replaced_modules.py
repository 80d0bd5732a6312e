"""The modules that stand in for others in the Pulumi CLI (docs/adr/0057-fewer-and-smaller-builds-of-tools.md)."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PULUMI = Path(__file__).resolve().parents[3] / "tools" / "go" / "pulumi"
REPLACED = PULUMI / "replaced"

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="no `go` on PATH: install it from https://go.dev/dl")

PROGRAM = """package main

import (
	"fmt"
	"os"

	fork "github.com/ccojocar/zxcvbn-go"
	"github.com/nbutton23/zxcvbn-go"
)

func main() {
	for _, text := range os.Args[1:] {
		fmt.Println(zxcvbn.PasswordStrength(text, nil).Entropy, fork.PasswordStrength(text, nil).Entropy)
	}
}
"""


def test_go_mod_replaces_each_module_by_the_folder_that_declares_it() -> None:
    replaced = dict(re.findall(r"^\t(\S+) => \./replaced/(\S+)$", (PULUMI / "go.mod").read_text(), re.MULTILINE))
    folders = {path.parent.name: path.read_text() for path in REPLACED.glob("*/go.mod")}
    assert sorted(replaced.values()) == sorted(folders)
    for module, folder in replaced.items():
        assert folders[folder].startswith(f"module {module}\n")


@needs_go
def test_the_strength_of_a_text_is_the_upper_bound_of_zxcvbn(tmp_path: Path) -> None:
    original, fork = "github.com/nbutton23/zxcvbn-go", "github.com/ccojocar/zxcvbn-go"
    (tmp_path / "go.mod").write_text(
        f"module example.test/strength\n\ngo 1.21\n\nrequire (\n\t{original} v0.0.0\n\t{fork} v0.0.0\n)\n\n"
        f"replace (\n\t{original} => {REPLACED / 'zxcvbn'}\n\t{fork} => {REPLACED / 'zxcvbn-fork'}\n)\n"
    )
    (tmp_path / "main.go").write_text(PROGRAM)
    texts = {"": 0.0, "password": 8 * math.log2(26), "Pass1": 5 * math.log2(62), "aB3$" * 4: 16 * math.log2(95)}
    answer = subprocess.run(
        ["go", "run", "-mod=mod", ".", *texts],
        cwd=tmp_path,
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    numbers = [float(number) for number in answer.stdout.split()]
    assert numbers == pytest.approx([entropy for entropy in texts.values() for _ in range(2)])
