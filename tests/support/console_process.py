"""`herdsman console` as a process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kubeapi.client import KubeClient
from tests.support.certificates import own_certificate


@contextlib.contextmanager
def console_process(kubeconfig: Path | None, *, home: Path | None = None) -> Iterator[str]:
    """Run a console while the block lasts; yields its link, which works once.

    Without a kubeconfig it is the console of local mode, whose folders are below `home`.
    """
    argv = [sys.executable, "-m", "automation.cli", "console", "--port", "0"]
    environment = dict(os.environ)
    if kubeconfig is not None:
        argv += ["--kubeconfig", str(kubeconfig)]
    else:
        own = ("KUBECONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")
        environment = {name: value for name, value in environment.items() if name not in own} | {"HOME": str(home)}
    with _serving(argv, environment) as address:
        yield address


@contextlib.contextmanager
def shared_console_process(kubeconfig: Path, directory: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Run a console for everybody with a token of a cluster; yields its address and the TLS context for clients.

    It gets the server and the authority of the kubeconfig, and nothing of its user.
    """
    access = KubeClient.from_kubeconfig(str(kubeconfig)).access
    (directory / "api-ca.crt").write_text(access.authority() or "")
    pem = own_certificate(directory)
    argv = [sys.executable, "-m", "automation.cli", "console", "--listen", "127.0.0.1:0"]
    argv += [f"--tls-cert={pem}", f"--tls-key={pem}", f"--api-server={access.server}"]
    argv += [f"--api-ca={directory / 'api-ca.crt'}"]
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {"HOME": str(directory)}
    with _serving(argv, environment) as address:
        yield address, ssl.create_default_context(cafile=str(directory / "ca.crt"))


@contextlib.contextmanager
def _serving(argv: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Run a console while the block lasts; yields the address that it prints. SIGTERM must end it without an error."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"https?://\S+", process.stdout.readline())
            assert found is not None
            yield found[0]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
