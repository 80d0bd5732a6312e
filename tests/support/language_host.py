"""Replaces Pulumi's language host for Python where it is missing, for tests that run the CLI as users do.

An official installation of Pulumi includes `pulumi-language-python`; Herdsman builds the CLI alone. This file
implements the same protocol: the engine starts it, reads its port, and asks it to run a project's program in the
project's virtual environment. It supports `pulumi preview`, `up` and `destroy`. The Python of the tests runs it as a
file (`serve`), and so does the Python of the virtual environment (`program`, `packages`). It imports no module of the
tests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import runpy
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path
from typing import Any

_SHOWN = 32
"""The exit code of a program whose error has been printed already."""


def install(folder: Path) -> None:
    """Write a program `pulumi-language-python` that starts this file into a folder of PATH."""
    program = folder / "pulumi-language-python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" serve "$@"\n')
    program.chmod(0o755)


def _serve(arguments: list[str]) -> None:
    import grpc
    from pulumi.runtime.proto import LanguageRuntimeServicer, language_pb2, language_pb2_grpc, plugin_pb2

    engine = arguments[-1]

    def python(info: Any) -> str:
        options = dict(info.options.items())
        return str(Path(info.root_directory) / str(options["virtualenv"]) / "bin" / "python")

    class Host(LanguageRuntimeServicer):
        def Handshake(self, request: Any, context: Any) -> Any:
            return language_pb2.LanguageHandshakeResponse()

        def GetPluginInfo(self, request: Any, context: Any) -> Any:
            return plugin_pb2.PluginInfo(version="0.0.0")

        def GetRequiredPackages(self, request: Any, context: Any) -> Any:
            told = subprocess.run([python(request.info), __file__, "packages"], capture_output=True, check=True)
            packages = [plugin_pb2.PackageDependency(**each) for each in json.loads(told.stdout)]
            return language_pb2.GetRequiredPackagesResponse(packages=packages)

        def Run(self, request: Any, context: Any) -> Any:
            values = {
                "monitor": request.monitor_address,
                "engine": engine,
                "project": request.project,
                "stack": request.stack,
                "parallel": request.parallel,
                "dry_run": request.dryRun,
                "organization": request.organization,
                "root_directory": request.info.root_directory,
            }
            entry = Path(request.info.program_directory) / request.info.entry_point
            environment = {
                **os.environ,
                "PULUMI_CONFIG": json.dumps(dict(request.config)),
                "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.configSecretKeys)),
                "SETTINGS_OF_RUN": json.dumps(values),
            }
            command = [python(request.info), "-u", __file__, "program", str(entry)]
            code = subprocess.run(command, cwd=request.pwd, env=environment, check=False).returncode
            if code == _SHOWN:
                return language_pb2.RunResponse(bail=True)
            return language_pb2.RunResponse(error=f"the program exited with {code}" if code else "")

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(Host(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    parent = os.getppid()
    # The engine interrupts its language hosts. A host that the engine leaves behind ends by itself.
    with contextlib.suppress(KeyboardInterrupt):
        while os.getppid() == parent:
            time.sleep(0.5)


def _program(path: str) -> int:
    import pulumi

    pulumi.runtime.set_all_config(pulumi.runtime.get_config_env(), pulumi.runtime.get_config_secret_keys_env())
    pulumi.runtime.configure(pulumi.runtime.Settings(**json.loads(os.environ.pop("SETTINGS_OF_RUN"))))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    sys.argv = [path]
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    def run() -> None:
        runpy.run_path(path, run_name="__main__")

    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(run))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return 1
    except Exception as error:
        pulumi.log.error(f"Program failed with an unhandled exception: {error!r}")
        return _SHOWN
    finally:
        end(loop)
    return 0


def end(loop: asyncio.AbstractEventLoop) -> None:
    """Close the event loop of a program. Its threads finish their work; idle ones end at once."""
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def _packages() -> list[dict[str, str]]:
    """List the plugins that the packages of this environment name in their `pulumi-plugin.json`."""
    found = []
    for file in sorted(path for entry in sys.path if entry for path in Path(entry).glob("*/pulumi-plugin.json")):
        said = json.loads(file.read_text())
        if said.get("resource"):
            package = {"kind": "resource", "name": said["name"], "version": said.get("version", "")}
            found.append({**package, "server": said.get("server", "")})
    return found


def main() -> int:
    """Serve the engine, or run one program, or list the plugins of this environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("serve", "program", "packages"))
    parser.add_argument("path", nargs="?", default="")
    if sys.argv[1] == "serve":
        _serve(sys.argv[2:])
        return 0
    options = parser.parse_args()
    if options.action == "program":
        return _program(options.path)
    print(json.dumps(_packages()))
    return 0


if __name__ == "__main__":
    # The folder of a script is first on its path, and this folder holds modules of the tests.
    sys.path.pop(0)
    sys.exit(main())
