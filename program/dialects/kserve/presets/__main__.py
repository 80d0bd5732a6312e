"""Print presets with their parts in place, to change one: `python -m program.dialects.kserve.presets [NAME]`."""

from __future__ import annotations

import sys

import yaml

from program.dialects.kserve import presets


class _Dumper(yaml.SafeDumper):
    """Writes scripts as blocks, so that they can be read."""


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    # A block cannot hold a line that ends in a space.
    block = "\n" in text and " \n" not in text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if block else None)


_Dumper.add_representer(str, _text)


def main(arguments: list[str]) -> int:
    """Print one preset as YAML, or the names of all."""
    if not arguments:
        sys.stdout.write("".join(f"{name}\n" for name in presets.names()))
        return 0
    name = arguments[0].removeprefix(presets.PREFIX)
    preset = presets.preset(f"{presets.PREFIX}{name}")
    if preset is None:
        sys.stderr.write(f"there is no preset `{arguments[0]}`; there are {', '.join(presets.names())}\n")
        return 2
    sys.stdout.write(yaml.dump(preset, Dumper=_Dumper, sort_keys=False, width=120))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
