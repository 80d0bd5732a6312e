"""Sends questions to the process that evaluates custom rules in CEL and Python, and limits its time.

Made by `reading`, one for each folder that has rules in CEL or Python. If the process is too slow or dies, the caller
gets a sentence instead of findings; such a rule counts as violated.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import components
from components.policies.own_rules import Answer
from kubeapi.json_types import Json

START_TIMEOUT_S = 20.0
"""Limit in seconds for the start of a Python interpreter and the load of the folder's code."""
ANSWER_TIMEOUT_S = 3.0
"""Limit in seconds for all rules about one service together, and, if they exceed it, for each of them alone."""
REST_S = 60.0
"""Seconds until a rule is evaluated again that exceeded its time or ended the process."""
LARGEST_INPUT = 4 << 20
"""Bytes of the input of rules; the API server accepts no object over 1.5 MiB."""
LARGEST_ANSWER = 16 << 20

_MAIN = "from components.policies.own_rules import main; main()"
# Rules must not get the loop's credentials by environment variables.
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")


class RuleUnusable(Exception):
    """A rule cannot be loaded. `where` is the number of a CEL expression or the name of a Python file."""

    def __init__(self, where: int | str, why: str) -> None:
        super().__init__(why)
        self.where, self.why = where, why


class _Silent(Exception):
    """The process gave no answer; the message is the reason."""


class Evaluator:
    """One process with the rules of one folder. Thread-safe; it answers one question at a time."""

    def __init__(
        self,
        folder: Path,
        expressions: Sequence[str],
        files: Mapping[str, str],
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the process and load the rules. Raises RuleUnusable."""
        self._load = {"load": {"folder": str(folder.absolute()), "cel": list(expressions), "python": dict(files)}}
        self._timeout_s = answer_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._resting: dict[int, tuple[float, str]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            loaded = self._start()
        except _Silent as error:
            raise RuleUnusable("", f"the rules of the folder cannot be loaded: {error}") from None
        self.rules: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = tuple(
            (name, enforcement, tuple(namespaces), tuple(names), tuple(kinds))
            for name, enforcement, namespaces, names, kinds in loaded["rules"]
        )
        """The Python rules: name, enforcement, globs of namespaces and of names, kinds."""

    def ask(self, numbers: Sequence[int], given: Json) -> dict[int, list[Answer] | str]:
        """Evaluate rules by number for one service, and return their answers; a string is the reason for no answer.

        The CEL rules have the first numbers, then the Python rules.
        """
        with self._lock:
            answers: dict[int, list[Answer] | str] = {}
            now = self._clock()
            for number in numbers:
                until, why = self._resting.get(number, (0.0, ""))
                if now < until:
                    answers[number] = why
            asked = [number for number in numbers if number not in answers]
            try:
                if asked:
                    answers.update(zip(asked, self._ask(asked, given), strict=True))
                return answers
            except _Silent:
                # One of the rules is at fault; the others are evaluated one by one.
                for number in asked:
                    answers[number] = self._ask_alone(number, given)
                return answers

    def close(self) -> None:
        """End the process. The next question starts it again."""
        with self._lock:
            self._end()

    def _ask_alone(self, number: int, given: Json) -> list[Answer] | str:
        try:
            return self._ask([number], given)[0]
        except _Silent as error:
            self._resting[number] = (self._clock() + REST_S, str(error))
            return str(error)

    def _ask(self, numbers: list[int], given: Json) -> list[list[Answer] | str]:
        try:
            line = json.dumps({"ask": numbers, "input": given})
        except (TypeError, ValueError, RecursionError) as error:
            return [f"the service cannot be written as JSON: {error}" for _ in numbers]
        if len(line) > LARGEST_INPUT:
            return [f"the service and its objects have {len(line)} bytes, more than {LARGEST_INPUT}" for _ in numbers]
        if self._process is None or self._process.poll() is not None:
            self._end()
            try:
                self._start()
            except (RuleUnusable, OSError) as error:
                # A file that a rule imports may be broken by now.
                raise _Silent(str(error)) from None
        found = self._exchange(line, self._timeout_s)["findings"]
        return [each if isinstance(each, str) else [Answer(*words) for words in each] for each in found]

    def _start(self) -> Json:
        root = str(Path(components.__file__).parents[1])
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,  # only the loop handles Ctrl-C
        )
        answer = self._exchange(json.dumps(self._load), START_TIMEOUT_S)
        if "unusable" in answer:
            self._end()
            raise RuleUnusable(*answer["unusable"])
        return answer

    def _exchange(self, line: str, timeout_s: float) -> Json:
        """Send one line and return the answer. Raises _Silent, and ends the process, if there is no answer."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            answer: Json = json.loads(self._read(process.stdout.fileno(), timeout_s))
            return answer
        except _Silent:
            self._end()
            raise
        except (OSError, ValueError) as error:
            self._end()
            raise _Silent(f"the process that evaluates rules exited ({type(error).__name__})") from None

    @staticmethod
    def _read(descriptor: int, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        text = bytearray()
        while not text.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise _Silent(f"took longer than {timeout_s:g} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk or len(text) > LARGEST_ANSWER:
                raise _Silent("ended the process that evaluates rules")
            text += chunk
        return bytes(text)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
        process.wait()
