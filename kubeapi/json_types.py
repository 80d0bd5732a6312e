"""The type of a JSON object: a custom resource, a manifest, a request's body. Any package may import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""A decoded JSON object; keys are the API's own field names."""

JsonView = Mapping[str, Any]
"""A JSON object that the function only reads."""
