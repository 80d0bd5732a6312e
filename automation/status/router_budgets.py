"""Reads how much of the budgets of ModelRouters is used, from the store in which the gateways count.

`model_routers` writes it to the statuses. The store is the one that the loop's environment names as for a gateway, else
the SQLite database of this user, which a gateway on the same machine writes. One thread reads it, and only after a
router with budgets was seen. Without a store, or before it was read, nothing is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from program.desired.router import BudgetUse, Router

if TYPE_CHECKING:
    from gateway.accounting.ledger_job import Counter
    from gateway.accounting.stores import Store

READ_EVERY_S = 30.0
"""How often the store is read, and so how often a status can change by its budgets."""
STOP_TIMEOUT_S = 5.0
"""How long `stop` waits for a read."""

log = structlog.get_logger(__name__)


class RouterBudgets:
    """The use of all budgets. Thread-safe. `stop` ends its thread."""

    def __init__(self, changed: Callable[[], None], *, read_every_s: float = READ_EVERY_S) -> None:
        """`changed` is called in another thread when a read found other figures."""
        self._changed = changed
        self._read_every_s = read_every_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._spent: Mapping[Counter, int] | None = None
        self._thread: threading.Thread | None = None
        self._store: Store | None = None
        self._failed = False

    def uses(self, router: Router) -> tuple[BudgetUse, ...] | None:
        """Return how much of a router's budgets is used; None if it is not known. Returns at once."""
        if not router.budgets:
            return None
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="router-budgets", daemon=True)
                self._thread.start()
            spent = self._spent
        if spent is None:
            return None
        from gateway.routers.budgets import uses_of

        return uses_of(router, spent, time.time())

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        # The loop needs these modules only for routers with budgets.
        from gateway.accounting.stores import StoreAway, StoreInvalid

        while True:
            try:
                self._read()
                self._failed = False
            except StoreInvalid as error:
                log.warning("Cannot read the budgets of ModelRouters", why=str(error))
                return
            except StoreAway as error:
                if not self._failed:
                    log.warning("The store with the budgets of ModelRouters is away", why=str(error))
                self._failed = True
            except Exception:
                log.exception("Could not read the budgets of ModelRouters")
            if self._stopping.wait(self._read_every_s):
                break
        if self._store is not None:
            self._store.close()

    def _read(self) -> None:
        from gateway.accounting.stores import existing
        from gateway.routers.budgets import SCOPES

        if self._store is None:
            self._store = existing()
        if self._store is None:
            return
        spent = self._store.spent(SCOPES)
        with self._lock:
            before, self._spent = self._spent, spent
        # A window that ended changes the figures without a new charge: its counters are gone.
        if spent != before:
            self._changed()
