"""When Secrets of engines are read again."""

from __future__ import annotations

import base64
from typing import Any, cast

from gateway.engines.secret_reader import AGAIN_S, READ_EVERY_S, EngineSecrets
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.dialects.engine_access import SecretName

PRESENT, EARLIER = SecretName("prod", "chat-engine-key-2"), SecretName("prod", "chat-engine-key")
KEYS = frozenset({"api-key"})


class Secrets:
    """The Secrets of a cluster."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.reads: list[str] = []

    def get(self, _kind: Any, _namespace: str, name: str) -> Json:
        self.reads.append(name)
        if name not in self.values:
            raise NotFound(404, "NotFound", f"secrets {name} not found")
        return {"data": {"api-key": base64.b64encode(self.values[name].encode()).decode()}}


def test_a_missing_key_is_read_again_soon_unless_it_is_the_one_before() -> None:
    now, secrets = 100.0, Secrets()
    reader = EngineSecrets(cast("KubeClient", secrets), changed=lambda: None, clock=lambda: now)
    reader.want({PRESENT: KEYS, EARLIER: KEYS}, {EARLIER})
    assert reader.read_due()
    assert reader.known()[PRESENT].problem == reader.known()[EARLIER].problem == "does not exist"
    secrets.reads.clear()
    now += AGAIN_S
    secrets.values[PRESENT.name] = "k2"
    assert reader.read_due()
    assert secrets.reads == [PRESENT.name]
    assert reader.known()[PRESENT].values == {"api-key": "k2"}
    now += READ_EVERY_S
    reader.read_due()
    assert sorted(secrets.reads) == sorted([PRESENT.name, PRESENT.name, EARLIER.name])
    reader.read_again([EARLIER])
    now += AGAIN_S
    secrets.reads.clear()
    reader.read_due()
    assert secrets.reads == [EARLIER.name], "an engine refused the present key"
