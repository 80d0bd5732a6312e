"""The file with a unit's secret variables: a shell reads the written values back, and old units keep their mark."""

from __future__ import annotations

import plistlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.steps import launchd, systemd
from agent.steps.service import NotExpressible, Service, environment_file_text

AWKWARD = "a \"b\" 'c' \\ \\n $HOME `id` %h #x = \ttab\nnew line\\"


def read_back(text: str, names: list[str], folder: Path) -> list[str]:
    file = folder / "variables"
    file.write_text(text)
    argv = [*launchd._reading(str(file)), "printenv", "-0", *names]
    found = subprocess.run(argv, capture_output=True, check=True).stdout.decode()
    return found.split("\0")[:-1]


def test_a_shell_reads_values_back_as_they_are(tmp_path: Path) -> None:
    values = {"A": AWKWARD, "B": "", "C": "ä" * 100}
    assert read_back(environment_file_text(values), ["A", "B", "C"], tmp_path) == list(values.values())


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30))
def test_every_quote_and_backslash_is_escaped(value: str) -> None:
    line = environment_file_text({"A": value})
    inner = line.removeprefix('A="').removesuffix('"\n')
    plain, at = "", 0
    while at < len(inner):
        at += inner[at] == "\\"
        plain += inner[at]
        at += 1
    assert plain == value


@pytest.mark.parametrize("values", [{"A B": "1"}, {"A;id": "1"}, {"": "1"}, {"A": "\0"}])
def test_what_is_no_variable_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(NotExpressible):
        environment_file_text(values)


def test_units_name_the_file_and_are_their_owners_alone_where_they_hold_a_users_variables() -> None:
    plain = Service(name="herdsman-process-a.b", description="d", argv=("/bin/x",), environment={"A": "1"})
    assert (plain.mark, plain.file_mode) == ("e40da8d9064e92e3", 0o644), "an upgrade restarts nothing"
    private = Service(
        name=plain.name, description="d", argv=("/bin/x",), environment={"A": "1"}, private_environment=True
    )
    assert (private.mark, private.file_mode) == (plain.mark, 0o600)
    filed = Service(name=plain.name, description="d", argv=("/bin/x",), environment_file="/s/a b.env")
    assert filed.mark != plain.mark
    assert "\nEnvironmentFile=/s/a b.env\n" in systemd.unit_text(filed)
    assert "EnvironmentFile" not in systemd.unit_text(plain)
    assert plistlib.loads(launchd.plist(plain))["ProgramArguments"] == ["/bin/x"]
    assert plistlib.loads(launchd.plist(filed))["ProgramArguments"][3:] == ["/s/a b.env", "/bin/x"]
