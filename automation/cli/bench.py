"""`herdsman bench NAME`: first-token times and tokens a second of a service with 1, 2, 4 and 8 clients."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from automation.chat.completions import Completions
from automation.chat.measuring import Round, measure
from automation.cli import exits
from automation.cli.duration_argument import duration_s
from automation.cli.output import OutputFormat, complain, print_json, print_table, say
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

MOST_CLIENTS = 256
COLUMNS = (
    *("CLIENTS", "REQUESTS", "FAILED", "TOKENS/S", "OF ONE", "FIRST p50", "FIRST p95", "FIRST p99"),
    *("TOTAL p50", "TOTAL p95", "TOTAL p99"),
)


def bench(
    name: Name,
    clients: Annotated[str, typer.Option(help="Numbers of clients, one round each.")] = "1,2,4,8",
    requests: Annotated[int, typer.Option("--requests", "-i", min=1, help="Requests of each client in a round.")] = 4,
    warmup: Annotated[int, typer.Option(min=0, help="Requests before the first round, which do not count.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 64,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Message to send.", show_default="a sentence")] = "",
    timeout: Annotated[str, typer.Option(help="Longest wait until the service answers, as 10m.")] = "10m",
    namespace: Namespace = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Measure a service: time to the first token, tokens a second, and percentiles for several numbers of clients.

    Times are in seconds and include the way from this machine. TOKENS/S counts all clients; OF ONE is the median of
    single answers after their first token. Exit code 1: a request failed.
    """
    numbers = _numbers(clients)
    timeout_s = float(duration_s(timeout, "--timeout"))
    rounds: list[Round] = []
    with errors_end(), late_ends():
        place = open_place(kubeconfig, context)
        service = wait_until_ready(place, find_service(place, name, namespace), timeout_s=timeout_s)
        with place.reach(service) as reached, Completions(reached, connections=max(numbers)) as completions:
            say(f"Measuring {full_name(service)} by {reached.how}", err=True)
            seed = time.time_ns() % 1_000_000
            if warmup:
                measure(completions, clients=1, requests=warmup, max_tokens=max_tokens, prompt=prompt, seed=seed + 1)
            for number in numbers:
                rounds.append(
                    measure(
                        completions, clients=number, requests=requests, max_tokens=max_tokens, prompt=prompt, seed=seed
                    )
                )
                say(f"{number} client{'' if number == 1 else 's'}: {rounds[-1].tokens_per_s:.1f} tokens/s", err=True)
    if output is OutputFormat.JSON:
        print_json({"service": full_name(service), "how": reached.how, "rounds": [each.as_json() for each in rounds]})
    else:
        print_table(COLUMNS, [cells(each) for each in rounds])
    if failure := next((each.failure for each in rounds if each.failure), ""):
        complain(failure, hint=f"`herdsman logs {name}` shows the log of the engine")
        raise typer.Exit(exits.FAILED)


def cells(found: Round) -> list[str]:
    """Return a round as a row of the table."""
    percentiles = [
        "-" if each is None else f"{value:.3f}"
        for each in (found.first_token_s, found.total_s)
        for value in ((each.p50, each.p95, each.p99) if each else (0.0, 0.0, 0.0))
    ]
    one = "-" if found.tokens_per_s_of_one is None else f"{found.tokens_per_s_of_one:.1f}"
    counts = [str(found.clients), str(found.requests), str(found.failed)]
    return [*counts, f"{found.tokens_per_s:.1f}", one, *percentiles]


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= MOST_CLIENTS for word in words):
        raise typer.BadParameter(f"--clients: `{text}` is no list of numbers from 1 to {MOST_CLIENTS}, as in 1,2,4,8")
    return [int(word) for word in words]
