"""`herdsman chat NAME`: talk to a service, in a conversation or with one prompt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from automation.cli import exits
from automation.cli.duration_argument import duration_s
from automation.cli.output import complain, say
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
from automation.console import terminal_text

if TYPE_CHECKING:
    from automation.chat.completions import Completions, Measured
    from automation.chat.conversation import Conversation
    from automation.places.place import Place, Reached, ServiceState

MOST_STDIN_CHARACTERS = 4 << 20


def chat(
    name: Name,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="Send this message, print the answer and end.", show_default=False),
    ] = None,
    system: Annotated[str, typer.Option(help="System prompt.", show_default=False)] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Randomness; 0 is the least.")] = None,
    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Show a model's reasoning; the default on a terminal.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Show times and tokens of each answer on stderr.")] = False,
    timeout: Annotated[str, typer.Option(help="Longest wait until the service answers, as 10m.")] = "10m",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Talk to a service; a sleeping one is woken first.

    With -p sends one message and prints only the answer on stdout. Without -p, standard input that is no terminal is
    the message. In a conversation, `/help` shows the commands, and Ctrl-C ends an answer.
    """
    from automation.chat.completions import CompletionFailed, Completions
    from automation.chat.conversation import Conversation
    from automation.cli.waiting import late_ends

    timeout_s = float(duration_s(timeout, "--timeout"))
    once = _one_message(prompt)
    if once is not None and not once.strip():
        raise typer.BadParameter("the message is empty")
    with errors_end(), late_ends():
        place = open_place(kubeconfig, context)
        service = _ready(place, find_service(place, name, namespace), timeout_s)
        with place.reach(service) as reached, Completions(reached) as completions:
            fields = {"max_tokens": max_tokens, "temperature": temperature}
            talk = Conversation(
                about=f"{full_name(service)} at {reached.how}",
                system=system,
                fields={key: value for key, value in fields.items() if value is not None},
            )
            shows = think if think is not None else sys.stdout.isatty()
            if once is None:
                _converse(talk, completions, reached, shows_reasoning=shows, stats=stats)
                return
            try:
                _answer(talk, completions, once, shows_reasoning=shows, stats=stats)
            except CompletionFailed as failed:
                complain(str(failed), hint=f"`herdsman status {service.name}` shows the service")
                raise typer.Exit(exits.FAILED) from None


def _one_message(prompt: str | None) -> str | None:
    """Return the only message of this run; None for a conversation."""
    if prompt is not None or sys.stdin.isatty():
        return prompt
    return sys.stdin.read(MOST_STDIN_CHARACTERS)


def _ready(place: Place, service: ServiceState, timeout_s: float) -> ServiceState:
    from automation.cli.waiting import wait_until_ready
    from automation.places.place import State

    ready = wait_until_ready(place, service, timeout_s=timeout_s)
    if ready.state is State.ASLEEP:
        say(f"{ready.name} is asleep; it loads the model now, and the answer follows", err=True)
    return ready


def _converse(
    talk: Conversation, completions: Completions, reached: Reached, *, shows_reasoning: bool, stats: bool
) -> None:
    from automation.chat.completions import CompletionFailed

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() history and editing
    say(f"{talk.about}, model {reached.model}. /help shows the commands, Ctrl-D ends.", err=True)
    while True:
        line = _line()
        if line is None:
            say("", err=True)
            return
        outcome = talk.read(line) if not line.startswith('"""') else None
        prompt = outcome.prompt if outcome is not None else line.removeprefix('"""')
        if outcome is not None and outcome.ends:
            return
        if outcome is not None and outcome.told:
            say(outcome.told, err=True)
        if not prompt.strip():
            continue
        try:
            _answer(talk, completions, prompt, shows_reasoning=shows_reasoning, stats=stats)
        except CompletionFailed as failed:
            complain(str(failed))
        except KeyboardInterrupt:
            say("", err=False)


def _line() -> str | None:
    """Read a line, or several between triple quotes, whose result begins with them; None at the end of the input."""
    try:
        line = input(">>> ")
        if not line.startswith('"""'):
            return line
        lines = [line.removeprefix('"""')]
        while not lines[-1].rstrip().endswith('"""'):
            lines.append(input("... "))
        return '"""' + "\n".join(lines).rstrip().removesuffix('"""')
    except KeyboardInterrupt:
        say("", err=True)
        return ""
    except EOFError:
        return None


def _answer(talk: Conversation, completions: Completions, prompt: str, *, shows_reasoning: bool, stats: bool) -> None:
    """Print an answer as it comes, and remember it. An interrupted one is remembered as far as it came."""
    from automation.chat.completions import Measured

    measured = Measured()
    answer: list[str] = []
    try:
        with _painted() as paint:
            for piece in completions.stream(talk.messages(prompt), measured, **talk.fields):
                if piece.reasoning and shows_reasoning:
                    paint(piece.reasoning, True)
                if piece.text:
                    answer.append(piece.text)
                    paint(piece.text, False)
    finally:
        if answer:
            talk.add(prompt, "".join(answer))
    if measured.finish_reason == "length":
        say("The answer ends here because it has the most tokens that were allowed.", err=True)
    if stats:
        say(stats_text(measured), err=True)


@contextlib.contextmanager
def _painted() -> Iterator[Any]:
    """Print pieces of text that a model wrote, cleaned for a terminal; reasoning is dim on a terminal."""
    is_terminal = sys.stdout.isatty()
    dim, any_text = False, False

    def paint(text: str, reasoning: bool) -> None:
        nonlocal dim, any_text
        if is_terminal and reasoning != dim:
            sys.stdout.write("\x1b[2m" if reasoning else "\x1b[0m\n\n")
            dim = reasoning
        any_text = True
        sys.stdout.write(terminal_text.lines(text) if is_terminal else text)
        sys.stdout.flush()

    try:
        yield paint
    finally:
        if dim:
            sys.stdout.write("\x1b[0m")
        if any_text:
            sys.stdout.write("\n")
            sys.stdout.flush()


def stats_text(measured: Measured) -> str:
    """Return the times and tokens of an answer."""
    first, rate = measured.first_token_s, measured.tokens_per_s
    parts = [
        f"{measured.prompt_tokens} prompt tokens" if measured.prompt_tokens is not None else "",
        f"{measured.tokens} tokens",
        f"first after {first:.2f} s" if first is not None else "",
        f"{rate:.1f} tokens/s" if rate is not None else "",
    ]
    return ", ".join(part for part in parts if part)
