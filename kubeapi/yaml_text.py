"""Read YAML that somebody else wrote: manifests, policies, configurations in ConfigMaps, kubeconfigs.

Every module that reads such YAML calls `load` or `load_all`. A few hundred bytes of nested aliases can stand for
billions of values, and deep nesting ends in a RecursionError. The loader refuses both before it makes a value.
Otherwise it is PyYAML's safe loader, which makes dicts, lists, texts, numbers, booleans, dates and None.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

MOST_ALIASED: Final = 50_000
"""So many values the aliases of one text may stand for, values inside of values counted."""
MOST_NESTED: Final = 100
"""Levels of lists and objects. The API server itself allows fewer than that in a CRD's schema."""


class YamlRefused(yaml.MarkedYAMLError):
    """A text is YAML and goes beyond the bounds; `problem` and `problem_mark` say how and where."""


class AliasRefused(YamlRefused):
    """A text has an alias where the caller allows none."""


def load(text: str) -> Any:
    """Read the only document of a text; None for an empty one. Raises yaml.YAMLError, ValueError (a date, a number)."""
    loader = _Loader(text, aliases=True)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def load_all(text: str, *, aliases: bool = True) -> Iterator[Any]:
    """Read all documents of a text, None for an empty one, and without `aliases` refuse any that has one.

    Raises yaml.YAMLError, often with the place in `problem_mark`; ValueError for a date or a number without sense.
    """
    loader = _Loader(text, aliases=aliases)
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]  # the stubs leave it out
            yield loader.get_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which counts what aliases stand for while it composes the nodes of a document."""

    def __init__(self, text: str, *, aliases: bool) -> None:
        super().__init__(text)
        self._may_alias = aliases
        self._aliased = 0
        self._sizes: list[int] = []
        """Of the nodes that are being composed, from the outermost: how many values each has so far."""
        self._anchored: dict[str, int] = {}
        """Sizes of the complete nodes of the document that have an anchor."""

    def compose_document(self) -> yaml.Node | None:
        self._anchored.clear()
        node: yaml.Node | None = super().compose_document()
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
        if isinstance(event, yaml.AliasEvent):
            node: yaml.Node | None = super().compose_node(parent, index)
            self._count_alias(event)
            return node
        if len(self._sizes) >= MOST_NESTED:
            raise _refused(f"it is nested more than {MOST_NESTED} levels deep", event)
        self._sizes.append(1)
        node = super().compose_node(parent, index)
        size = self._sizes.pop()
        if self._sizes:
            self._sizes[-1] += size
        if event.anchor is not None:
            self._anchored[event.anchor] = size
        return node

    def _count_alias(self, event: Any) -> None:
        if not self._may_alias:
            raise AliasRefused(problem="it has aliases; write out what they stand for", problem_mark=event.start_mark)
        size = self._anchored.get(event.anchor)
        if size is None:
            raise _refused(f"an alias stands inside of what its anchor `{event.anchor}` names", event)
        self._aliased += size
        if self._aliased > MOST_ALIASED:
            raise _refused(f"its aliases stand for more than {MOST_ALIASED} values; write them out", event)
        self._sizes[-1] += size


def _refused(problem: str, event: Any) -> YamlRefused:
    return YamlRefused(problem=problem, problem_mark=event.start_mark)
