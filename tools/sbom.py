"""Writes the list of the packages that Herdsman is installed with, as a CycloneDX document (SBOM).

`python -m tools.sbom` prints it. Versions and hashes are those of requirements.lock. The format:
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from datetime import UTC, datetime
from os import environ
from typing import Any

from tools.image import locked
from tools.image.locked import ROOT, Locked

_VERSION = re.compile(r"==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def document(lock: str, project: str, *, made_at: datetime) -> dict[str, Any]:
    """Return the CycloneDX document of a lock and a pyproject.toml. Raises LockUnclear."""
    own = tomllib.loads(project)["project"]
    entries = locked.needed(lock, project)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": made_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": f"pkg:pypi/{own['name']}@{own['version']}",
                "name": own["name"],
                "version": own["version"],
                "licenses": [{"license": {"id": own["license"]}}],
            },
        },
        "components": [_component(entry) for entry in sorted(entries, key=lambda entry: (entry.name, entry.text))],
    }


def _component(entry: Locked) -> dict[str, Any]:
    found = _VERSION.search(entry.text)
    if found is None:
        raise locked.LockUnclear(f"requirements.lock has no version of {entry.name}: make the lock again")
    reference = f"pkg:pypi/{entry.name}@{found[1]}"
    return {
        "type": "library",
        "bom-ref": reference,
        "name": entry.name,
        "version": found[1],
        "purl": reference,
        # One of a wheel or a source archive each; which one is installed depends on the platform.
        "externalReferences": [
            {
                "type": "distribution",
                "url": reference,
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in _HASH.findall(entry.text)],
            }
        ],
    }


def main() -> None:
    """Print the document of this checkout. SOURCE_DATE_EPOCH sets its time."""
    made_at = datetime.fromtimestamp(int(environ["SOURCE_DATE_EPOCH"]), UTC)
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    json.dump(document(lock, project, made_at=made_at), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
