"""The text of a Homebrew formula. Pure. The forms are those of https://docs.brew.sh/Formula-Cookbook.

Dependencies are wheels and not source archives: Pulumi's SDK has none, and grpcio, cryptography and pydantic-core need
compilers for an hour. So the formulas are for a tap, as homebrew-core demands builds from source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tools.homebrew.wheels import PYTHON, Platform, Wheel

_TEMPLATE = Template(Path(__file__).with_name("formula.rb.in").read_text(encoding="utf-8"))
"""The text with `$name` for each value. `#{…}` and `{…}` in it are Ruby's."""


@dataclass(frozen=True)
class Package:
    """What differs between the two formulas."""

    name: str
    """The distribution, and the formula."""
    description: str
    """At most 80 characters, without an article at its start and without a full stop (`brew audit`)."""
    script: str
    depends_on: tuple[str, ...]
    service: tuple[str, ...]
    """The arguments of the service's command. `#{…}` is Ruby's."""
    test: tuple[str, ...]
    """Lines of the test block."""
    caveats: str

    @property
    def ruby_class(self) -> str:
        """The name of the class, which Homebrew derives from the file's name."""
        return "".join(part.capitalize() for part in self.name.split("-"))


HERDSMAN = Package(
    name="herdsman",
    description="Serves LLMs on Kubernetes, Macs and Linux hosts",
    script="herdsman",
    depends_on=("llama.cpp", "pulumi", f"python@{PYTHON}"),
    service=("local", "up", "--foreground"),
    test=(
        'assert_equal version.to_s, shell_output("#{bin}/herdsman --version").strip',
        'assert_match "qwen", shell_output("#{bin}/herdsman catalog list --local")',
    ),
    caveats="""\
`brew services start herdsman` serves models on this Mac at http://127.0.0.1:8080/v1.
A host of a cluster needs a service of the system, because macOS keeps services of a
user away from the local network: `sudo herdsman host join`. After an upgrade of this
formula, `sudo herdsman agent upgrade` brings that service to the new version.
""",
)
AGENT = Package(
    name="herdsman-agent",
    description="Runs model servers on a Mac or a Linux host for Herdsman",
    script="herdsman-agent",
    depends_on=("llama.cpp", f"python@{PYTHON}"),
    service=("agent", "run", "--host=this-machine", "--plan-source=http", "--store=#{var}/herdsman-agent"),
    test=('assert_match "install", shell_output("#{bin}/herdsman-agent agent --help")',),
    caveats="""\
`brew services start herdsman-agent` runs an agent for this machine alone: its API is on
loopback, and its token in #{var}/herdsman-agent. A host of a cluster needs a service of
the system, because macOS keeps services of a user away from the local network:
`sudo herdsman-agent host join`. After an upgrade of this formula,
`sudo herdsman-agent agent upgrade` brings that service to the new version.
""",
)


def formula(
    package: Package,
    *,
    version: str,
    license_id: str,
    homepage: str,
    own: Wheel,
    dependencies: Mapping[Platform, Sequence[Wheel]],
) -> str:
    """Return the formula of a release. `own` is the wheel of the package, `dependencies` those of each platform."""
    names = sorted({wheel.name for wheels in dependencies.values() for wheel in wheels})
    resources = _indented("\n".join(_resource(name, dependencies) for name in names), 2) + "\n"
    service = ", ".join([f'opt_bin/"{package.script}"', *(_quoted(word) for word in package.service)])
    needs = "\n".join(f"  depends_on {_quoted(name)}" for name in sorted(package.depends_on))
    return _TEMPLATE.substitute(
        version=version,
        ruby_class=package.ruby_class,
        description=_quoted(package.description),
        homepage=_quoted(homepage),
        url=_quoted(own.url),
        quoted_version=_quoted(version),
        sha256=_quoted(own.sha256),
        license=_quoted(license_id),
        needs=needs,
        resources=resources,
        python=PYTHON,
        script=package.script,
        caveats=_indented(package.caveats, 6),
        service=service,
        name=package.name,
        test=_indented("\n".join(package.test), 4),
    )


def _resource(name: str, dependencies: Mapping[Platform, Sequence[Wheel]]) -> str:
    """Return the block of one dependency: one file for all platforms, or one for each."""
    found = {platform: wheel for platform, wheels in dependencies.items() for wheel in wheels if wheel.name == name}
    different = {wheel.url for wheel in found.values()}
    if len(found) == len(dependencies) and len(different) == 1:
        return _block(f"resource {_quoted(name)}", _file(next(iter(found.values()))))
    systems = []
    for system in sorted({platform.system for platform in found}, reverse=True):
        ordered = sorted(found.items(), key=lambda each: each[0].processor)
        files = [_block(f"on_{each.processor}", _file(wheel)) for each, wheel in ordered if each.system == system]
        systems.append(_block(f"on_{system}", "".join(files)))
    return _block(f"resource {_quoted(name)}", "".join(systems))


def _block(head: str, body: str) -> str:
    """Return a block of Ruby."""
    return "\n".join([f"{head} do", _indented(body, 2), "end", ""])


def _file(wheel: Wheel) -> str:
    return "\n".join([f"url {_quoted(wheel.url)}, using: :nounzip", f"sha256 {_quoted(wheel.sha256)}", ""])


def _quoted(text: str) -> str:
    """Return a string of Ruby. `#{…}` in it stays, because only this module's own texts have it."""
    if re.search(r'["\\\n]', text):
        raise ValueError(f"{text[:100]!r} cannot be a string of the formula")
    return f'"{text}"'


def _indented(text: str, indent: int) -> str:
    return "\n".join(f"{' ' * indent}{line}" if line else "" for line in text.rstrip("\n").splitlines())
