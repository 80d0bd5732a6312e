"""`herdsman open NAME`: give a service an address on this machine while the command runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Annotated

import typer

from automation.cli.curl import curl_line
from automation.cli.duration_argument import duration_s
from automation.cli.output import OutputFormat, print_json, say
from automation.cli.place_options import (
    Context,
    Kubeconfig,
    Name,
    Namespace,
    errors_end,
    find_service,
    full_name,
    open_place,
)
from automation.cli.waiting import late_ends, wait_until_ready


def open_(
    name: Name,
    timeout: Annotated[str, typer.Option(help="Longest wait until the service answers, as 10m.")] = "10m",
    namespace: Namespace = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table (text) or json.")] = OutputFormat.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Open a service's OpenAI API on this machine until Ctrl-C, and print its address.

    Only this machine can connect. A service on a host or behind the gateway has its own address, which stays.
    """
    timeout_s = float(duration_s(timeout, "--timeout"))
    with errors_end(), late_ends():
        place = open_place(kubeconfig, context)
        service = wait_until_ready(place, find_service(place, name, namespace), timeout_s=timeout_s)
        with place.reach(service) as reached:
            mode = str((service.document.get("status") or {}).get("mode") or "chat")
            if output is OutputFormat.JSON:
                print_json({"baseUrl": reached.base_url, "model": reached.model, "how": reached.how})
            else:
                say(f"{full_name(service)} is at {reached.base_url}, model {reached.model} ({reached.how})")
                say(curl_line(reached, mode=mode))
            sys.stdout.flush()
            say("Ctrl-C ends it", err=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
