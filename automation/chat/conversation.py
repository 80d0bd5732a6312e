"""A conversation with a service: the messages so far, and the commands that begin with `/`. Pure but for files.

Used by `herdsman chat`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automation.places.near_names import did_you_mean

HELP = {
    "/help": "show the commands",
    "/clear": "forget the conversation",
    "/system TEXT": "set the system prompt; without TEXT remove it",
    "/set NAME VALUE": "set a field of requests, as temperature 0.2 or max_tokens 200; without VALUE remove it",
    "/show": "show the service, the system prompt and the fields",
    "/retry": "send the last message again",
    "/save FILE": "save the conversation as JSON",
    "/load FILE": "load a saved conversation",
    "/bye": "end the chat; also Ctrl-D",
}
_NAMES = [usage.split()[0] for usage in HELP]
MULTILINE = '"""'
"""Begins and ends a message of several lines."""


@dataclass(frozen=True)
class Outcome:
    """What a line of input means."""

    prompt: str = ""
    """A message to send; empty for none."""
    told: str = ""
    """An answer to a command."""
    ends: bool = False


@dataclass
class Conversation:
    """The messages, the system prompt and the fields of requests."""

    about: str = ""
    """The service, for `/show`."""
    system: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """Return the messages of a request with a new prompt."""
        before = [{"role": "system", "content": self.system}] if self.system else []
        return [*before, *self.turns, {"role": "user", "content": prompt}]

    def add(self, prompt: str, answer: str) -> None:
        """Remember a prompt and its answer."""
        self.turns += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]

    def read(self, line: str) -> Outcome:
        """Read a line of input: a message, or a command."""
        text = line.strip()
        if not text.startswith("/"):
            return Outcome(prompt=text)
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        match name:
            case "/bye" | "/exit" | "/quit":
                return Outcome(ends=True)
            case "/help" | "/?":
                width = max(map(len, HELP))
                lines = [f"{usage:<{width}}  {purpose}" for usage, purpose in HELP.items()]
                return Outcome(told="\n".join([*lines, f"{MULTILINE} begins and ends a message of several lines"]))
            case "/clear":
                self.turns.clear()
                return Outcome(told="The conversation is forgotten")
            case "/system":
                self.system = rest
                return Outcome(told="The system prompt is set" if rest else "There is no system prompt now")
            case "/set":
                return Outcome(told=self._set(rest))
            case "/show":
                given = " ".join(f"{name}={json.dumps(value)}" for name, value in self.fields.items())
                return Outcome(told=f"{self.about}\nsystem: {self.system or '-'}\nfields: {given or '-'}")
            case "/retry":
                return self._retry()
            case "/save" | "/load":
                return Outcome(told=self._file(name, rest))
        near = did_you_mean(name, _NAMES)
        return Outcome(told=f"there is no command {name}; {near or '/help shows the commands'}")

    def _set(self, rest: str) -> str:
        name, _, value = rest.partition(" ")
        if not name:
            return "write /set NAME VALUE, as in /set temperature 0.2"
        if not value:
            self.fields.pop(name, None)
            return f"{name} is the service's default"
        try:
            self.fields[name] = json.loads(value)
        except ValueError:
            self.fields[name] = value
        return f"{name} is {value}"

    def _retry(self) -> Outcome:
        if not self.turns:
            return Outcome(told="there is no message yet")
        prompt, _ = self.turns[-2:]
        del self.turns[-2:]
        return Outcome(prompt=prompt["content"])

    def _file(self, name: str, path: str) -> str:
        if not path:
            return f"write {name} FILE"
        file = Path(path).expanduser()
        try:
            if name == "/save":
                saved = {"system": self.system, "fields": self.fields, "messages": self.turns}
                file.write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
                return f"Saved {len(self.turns)} messages"
            loaded = json.loads(file.read_text(encoding="utf-8"))
            turns = [{"role": str(each["role"]), "content": str(each["content"])} for each in loaded["messages"]]
            self.system, self.fields, self.turns = str(loaded.get("system") or ""), dict(loaded["fields"]), turns
            return f"Loaded {len(turns)} messages"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{file}: {error}"
