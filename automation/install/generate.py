"""Writes the files that are generated from the installation: docs/install and charts/herdsman.

`python -m automation.install.generate ROOT` (`make install-files`) writes them in the checkout. A test compares them.
"""

from __future__ import annotations

import pathlib
import sys

from automation.install import identities, objects
from automation.install.chart import GENERATED, chart_files
from automation.install.options import InstallOptions
from components import priority_classes

CHART = "charts/herdsman"
DOCS = "docs/install"
_ROLES = frozenset({"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
_OF_CLUSTER = frozenset({"CustomResourceDefinition", "PriorityClass"})
_POLICIES = frozenset(kind.kind for kind in identities.KINDS)


def files() -> dict[str, str]:
    """Return the content of each generated file, by its path in the checkout."""
    options = InstallOptions()
    everything = [part for part in objects.chosen(options) if part.kind not in _OF_CLUSTER]
    roles = [part for part in everything if part.kind in _ROLES or part.kind == "Namespace"]
    admission = [part for part in everything if part.kind in _POLICIES]
    others = [part for part in everything if part.kind not in {*_ROLES, *_POLICIES, "Namespace"}]
    dialects = {
        name: [part for part in objects.parts() if part.condition == name and part.kind in _ROLES]
        for name in objects.DIALECTS
    }
    return {
        **{
            f"{DOCS}/rbac-{name}.yaml": f"{GENERATED} The table: permissions.py.\n{objects.manifest(wanted, options)}"
            for name, wanted in dialects.items()
        },
        f"{DOCS}/rbac.yaml": f"{GENERATED} The table: permissions.py.\n{objects.manifest(roles, options)}",
        f"{DOCS}/agent-policies.yaml": f"{GENERATED} Needs Kubernetes 1.30; "
        "docs/explanation/security.md has the reasons.\n"
        f"{objects.manifest(admission, options)}",
        f"{DOCS}/operator.yaml": f"{GENERATED} As `herdsman install --render` without options, less rbac.yaml and "
        "agent-policies.yaml.\n"
        f"{objects.manifest(others, options)}",
        f"{DOCS}/priority-classes.yaml": priority_classes.as_yaml(),
        **{f"{CHART}/{path}": text for path, text in chart_files().items()},
    }


def main(root: pathlib.Path) -> None:
    """Write the files, and delete files of the chart that are not generated any more."""
    wanted = files()
    for path in sorted((root / CHART).rglob("*")):
        if path.is_file() and str(path.relative_to(root)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
