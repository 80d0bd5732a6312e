"""Reads YAML of unknown origin: manifests, policies, configurations in ConfigMaps, kubeconfigs.

Every module that reads such YAML calls `load` or `load_all`. A few hundred bytes of nested aliases can expand to
billions of values, and deep nesting causes a RecursionError. The loader refuses both before it makes a value. All
values that it makes can be written as JSON: objects with texts as keys, lists, texts, finite numbers of 64 bits,
booleans and None. Like kubectl it reads an unquoted date or time as a text, and a number or boolean that is a key as
its text. It refuses types that JSON lacks (`!!binary`, `!!set`, `.nan`) and reports the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import yaml
import yaml.composer
import yaml.constructor
import yaml.parser
import yaml.reader
import yaml.resolver
import yaml.scanner

MOST_ALIASED: Final = 50_000
"""Number of values to which the aliases of one text may expand, nested values included."""
MOST_NESTED: Final = 100
"""Levels of lists and objects. The API server itself allows fewer in a CRD's schema."""


_TAG: Final = "tag:yaml.org,2002:"
_NOT_IN_JSON: Final = ("binary", "omap", "pairs", "set", "timestamp")
_LARGEST_NUMBER: Final = 2**64 - 1
_SMALLEST_NUMBER: Final = -(2**63)
_MOST_DIGITS: Final = 70
"""Longest number in characters that may fit into 64 bits, in any base. Python refuses numbers of thousands of
digits."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_INT: Final = re.compile(r"[-+]?(0b_*[01][01_]*|0[0-7_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|[1-9][0-9_]*)\Z")
_FLOAT: Final = re.compile(
    r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
)


_FORMS: Final = {f"{_TAG}int": _INT, f"{_TAG}float": _FLOAT}
"""The forms of numbers, without YAML 1.1's base 60, in which `22:22` is a number."""
_TEXTS: Final = (f"{_TAG}timestamp", f"{_TAG}value")
"""Types of YAML 1.1 whose unquoted values are read as texts."""


class YamlRefused(yaml.MarkedYAMLError):
    """A text is YAML but exceeds the bounds, or JSON cannot hold it; see `problem` and `problem_mark`."""


class AliasRefused(YamlRefused):
    """A text has an alias where the caller allows none."""


def load(text: str) -> Any:
    """Return the only document of a text; None for an empty text. Raises yaml.YAMLError."""
    quickly = _read_by_libyaml(text, aliases=True)
    if quickly is not None and len(quickly) < 2:
        return quickly[0] if quickly else None
    loader = _Loader(text, aliases=True)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def load_all(text: str, *, aliases: bool = True) -> Iterator[Any]:
    """Yield all documents of a text, None for an empty one; without `aliases`, an alias is refused.

    Raises yaml.YAMLError, often with the place in `problem_mark`.
    """
    quickly = _read_by_libyaml(text, aliases=aliases)
    if quickly is not None:
        yield from quickly
        return
    loader = _Loader(text, aliases=aliases)
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]  # the stubs leave it out
            yield loader.get_data()
    finally:
        loader.dispose()


class _Values(yaml.composer.Composer, yaml.constructor.SafeConstructor, yaml.resolver.Resolver):
    """Makes values from a parser's events, with bounds: it counts the values of aliases, and makes only JSON's values.

    A class of PyYAML that parses is its base class too, and comes before it.
    """

    yaml_implicit_resolvers = {
        first: [(tag, _FORMS.get(tag, form)) for tag, form in forms if tag not in _TEXTS]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def _start(self, *, aliases: bool) -> None:
        yaml.composer.Composer.__init__(self)
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)
        self._may_alias = aliases
        self._aliased = 0
        self._sizes: list[int] = []
        """The number of values so far of each node that is being composed, from the outermost."""
        self._anchored: dict[str, int] = {}
        """Sizes of the document's complete nodes with an anchor."""

    def compose_document(self) -> yaml.Node | None:
        self._anchored.clear()
        node: yaml.Node | None = super().compose_document()
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[attr-defined]  # of the parser
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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise _refused(f"expected a mapping, found a {node.id}", node)
        self.flatten_mapping(node)
        return {self._key(key): self.construct_object(value, deep=deep) for key, value in node.value}

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        found = super().construct_scalar(node)
        if not isinstance(found, str) or _SURROGATE.search(found) is None:
            return found
        try:
            # JSON writes a character beyond 16 bits as two escapes.
            return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise _refused("a string has half of a character (`\\ud800` to `\\udfff`)", node) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        if _INT.match(text) is None:
            raise _refused(f"`{text[:64]}` is not a whole number", node)
        found = super().construct_yaml_int(node) if len(text) <= _MOST_DIGITS else _LARGEST_NUMBER + 1
        if not _SMALLEST_NUMBER <= found <= _LARGEST_NUMBER:
            raise _refused("a number has more than 64 bits; put it in quotes", node)
        return int(found)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        text = str(self.construct_scalar(node))
        if _FLOAT.match(text) is None:
            raise _refused(f"`{text[:64]}` is not a decimal number", node)
        found = float(super().construct_yaml_float(node))
        if not math.isfinite(found):
            raise _refused(f"`{text[:64]}` is not a number in JSON; put it in quotes", node)
        return found

    def construct_yaml_bool(self, node: yaml.ScalarNode) -> bool:
        text = str(self.construct_scalar(node))
        if text.lower() not in self.bool_values:
            raise _refused(f"`{text[:64]}` is neither true nor false", node)
        return bool(super().construct_yaml_bool(node))

    def refuse_tag(self, node: yaml.Node) -> NoReturn:
        """Refuse a value of a type that JSON does not have."""
        raise _refused(f"tag !!{node.tag.removeprefix(_TAG)} is not supported; write a string in quotes", node)

    def _key(self, node: yaml.Node) -> str:
        key = self.construct_object(node, deep=True)
        if isinstance(key, str):
            return key
        if isinstance(key, bool):
            return "true" if key else "false"
        if isinstance(key, int | float):
            return str(key)
        kind = "null" if key is None else "a list" if isinstance(key, list) else "an object"
        raise _refused(f"a key is {kind}; write a string", node)

    def _count_alias(self, event: Any) -> None:
        if not self._may_alias:
            raise AliasRefused(problem="it has aliases; replace each alias by its value", problem_mark=event.start_mark)
        size = self._anchored.get(event.anchor)
        if size is None:
            raise _refused(f"an alias is inside the value of its anchor `{event.anchor}`", event)
        self._aliased += size
        if self._aliased > MOST_ALIASED:
            raise _refused(
                f"its aliases expand to more than {MOST_ALIASED} values; replace each alias by its value", event
            )
        self._sizes[-1] += size


for _name in ("int", "float", "bool"):
    _Values.add_constructor(_TAG + _name, getattr(_Values, f"construct_yaml_{_name}"))
for _name in _NOT_IN_JSON:
    _Values.add_constructor(_TAG + _name, _Values.refuse_tag)  # type: ignore[type-var]  # the stubs expect a loader


class _Loader(_Values, yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):
    """Reads by PyYAML's own parser. It decides which texts are refused, with which error."""

    def __init__(self, text: str, *, aliases: bool) -> None:
        yaml.reader.Reader.__init__(self, text)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)
        self._start(aliases=aliases)

    def scan_flow_scalar_non_spaces(self, double: bool, start_mark: yaml.Mark) -> list[str]:
        try:
            found: list[str] = super().scan_flow_scalar_non_spaces(double, start_mark)
        except ValueError:
            raise YamlRefused(problem="an escape is not a character", problem_mark=start_mark) from None
        return found


_ONLY_BY_PYTHON: Final = re.compile("[\t\r\x85\u2028\u2029\ufeff]|^%|(?:^|[\\s\\[{,])!|[?]|[|>][-+0-9]*#", re.MULTILINE)
"""Characters of texts that libyaml reads otherwise than PyYAML's parser, or may."""

if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]  # the stubs leave it out

    class _QuickLoader(_Values, CParser):
        """Reads by libyaml's parser, in a third of the time."""

        def __init__(self, text: str, *, aliases: bool) -> None:
            CParser.__init__(self, text)
            self._start(aliases=aliases)


def _read_by_libyaml(text: str, *, aliases: bool) -> list[Any] | None:
    """Return all documents of a text; None where PyYAML's parser must decide: without libyaml, and at each refusal."""
    if not yaml.__with_libyaml__ or _ONLY_BY_PYTHON.search(text) is not None:
        return None
    loader = _QuickLoader(text, aliases=aliases)
    found = []
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]  # the stubs leave it out
            found.append(loader.get_data())
    except (yaml.YAMLError, ValueError):
        return None
    finally:
        loader.dispose()
    return found


def _refused(problem: str, at: Any) -> YamlRefused:
    """Return the error for a node or an event."""
    return YamlRefused(problem=problem, problem_mark=at.start_mark)
