"""`python -m benchmarks static-fleet`: plain `pulumi` with a fleet of services in files, without a loop.

A real etcd and kube-apiserver, the Pulumi CLI, Herdsman's plugins of `herdsman provider path`, and a project as in
examples/09-static-fleet. The settings are those of docs/how-to/static-fleets.md: the CLI writes the state once in a
run, and no logs. Each figure is the duration of one command of the CLI, from its start to its end. The language host is
the official one if it is on PATH, else that of the tests, which runs programs with the same SDK.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from automation.cli.provider import plugin_folder
from benchmarks import preview
from kubeapi import kinds
from tests.support.ci.stand_ins import write_pulumi

NAMESPACE = "fleet"
LIMITS = {"preview of all new (s)": 15.0, "up of all new (s)": 15.0, "no-op preview (s)": 15.0, "no-op up (s)": 15.0}
"""For 500 services on two cores that do nothing else. Runs of fewer services are for information."""
LIMITED_FROM = 500
LONGEST_COMMAND_S = 600.0


class Project:
    """A Pulumi project with a fleet's manifests, and a stack in a local folder."""

    def __init__(self, directory: Path, kubeconfig: Path) -> None:
        self.root = directory / "project"
        self._programs = directory / "programs"
        for folder in (self.root / "manifests", self._programs, directory / "state", directory / "home"):
            folder.mkdir(parents=True)
        # As a file it keeps the CLI from writing logs.
        (directory / "home" / "logs").touch()
        write_pulumi(self._programs)
        self.language_host = shutil.which("pulumi-language-python") or "the tests' own"
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join((str(self._programs), str(plugin_folder()), os.environ["PATH"])),
            "KUBECONFIG": str(kubeconfig),
            "PULUMI_HOME": str(directory / "home"),
            "PULUMI_BACKEND_URL": f"file://{directory / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "benchmark",
            "PULUMI_SKIP_CHECKPOINTS": "true",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }
        # The environment of this process has Herdsman and its packages.
        runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
        self._write("Pulumi.yaml", yaml.safe_dump({"name": "fleet", "main": "__main__.py", "runtime": runtime}))
        self._write("__main__.py", 'import runpy\n\nrunpy.run_module("program", run_name="__main__")\n')
        config = {"herdsman:manifests": "manifests", "herdsman:namespace": NAMESPACE}
        self.pulumi("stack", "init", "bench")
        kept = yaml.safe_load((self.root / "Pulumi.bench.yaml").read_text()) or {}
        self._write("Pulumi.bench.yaml", yaml.safe_dump({**kept, "config": config}))

    def write_services(self, number: int) -> None:
        """Write the manifests of a fleet of this many services."""
        documents = preview.fleet(number, [NAMESPACE])
        self._write("manifests/fleet.yaml", yaml.safe_dump_all(documents))

    def pulumi(self, *words: str) -> tuple[float, float]:
        """Run a command of the CLI. Return its duration and the CPU time of its processes, in seconds."""
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        run = subprocess.run(
            ["pulumi", "--non-interactive", "--color=never", *words],
            cwd=self.root,
            env=self._environment,
            executable=str(self._programs / "pulumi"),
            capture_output=True,
            text=True,
            timeout=LONGEST_COMMAND_S,
            check=False,
        )
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if run.returncode != 0:
            raise RuntimeError(f"pulumi {' '.join(words)} failed:\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return took, cpu

    def _write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)


def main(arguments: list[str]) -> int:
    """Measure, print a table, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks static-fleet", description=__doc__)
    parser.add_argument("--services", type=int, default=500)
    options = parser.parse_args(arguments)
    with preview.served_cluster() as (cluster, client, directory):
        client.apply(kinds.NAMESPACES, None, _namespace(), field_manager=preview.MANAGER)
        project = Project(directory, cluster.kubeconfig)
        project.write_services(options.services)
        results = measure(project)
        made = len(client.list(kinds.DEPLOYMENTS, NAMESPACE)["items"])
        assert made == options.services, f"the API server has {made} Deployments"
    limits = LIMITS if options.services >= LIMITED_FROM else {}
    _print(results, limits, title=f"{options.services} services, language host: {project.language_host}")
    return 0 if all(results[name][0] <= limit for name, limit in limits.items()) else 1


def measure(project: Project) -> dict[str, tuple[float, float]]:
    """Return duration and CPU time of each command, in seconds."""
    return {
        "preview of all new (s)": project.pulumi("preview"),
        "up of all new (s)": project.pulumi("up", "--yes", "--skip-preview"),
        "no-op preview (s)": project.pulumi("preview", "--expect-no-changes"),
        "no-op up (s)": project.pulumi("up", "--yes", "--skip-preview", "--expect-no-changes"),
    }


def _namespace() -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _print(results: dict[str, tuple[float, float]], limits: dict[str, float], *, title: str) -> None:
    table = Table(box=None, header_style="bold", title=title)
    for column in ("MEASURE", "HERDSMAN", "LIMIT", "CPU OF THE CLI AND ITS PROCESSES (s)"):
        table.add_column(column, justify="left" if column == "MEASURE" else "right")
    for name, (took, cpu) in results.items():
        limit = limits.get(name)
        colour = "green" if limit is None or took <= limit else "red"
        table.add_row(name, f"[{colour}]{took:.2f}[/]", f"{limit:g}" if limit is not None else "", f"{cpu:.1f}")
    Console().print(table)
