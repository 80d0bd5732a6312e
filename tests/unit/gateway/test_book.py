"""What the accounts of requests keep while their answers run."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

from gateway.access.caller import Caller
from gateway.accounting.account import Account
from gateway.accounting.book import Book
from gateway.accounting.ledger import Ledger
from gateway.accounting.limits import Limit, Unit
from gateway.accounting.request_meter import Expected
from gateway.accounting.stores import SqliteStore
from gateway.engines.backends import Backends
from gateway.errors import GatewayError
from tests.support import event_loop


class Request:
    """Stands for a request with a large body."""

    def __init__(self) -> None:
        self.refused_by: list[GatewayError | None] = []

    def proceed(self, error: GatewayError | None) -> None:
        self.refused_by.append(error)


def test_the_body_of_a_request_with_limits_is_not_kept_for_its_answer(tmp_path: Path) -> None:
    caller = Caller("a", "ci", limits=(Limit("key/a/requests", Unit.REQUESTS, 5),))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ledger = Ledger(loop, SqliteStore(str(tmp_path / "gateway.db")))
        ledger.start()
        book = Book(Backends(loop), ledger)
        account = Account(book, caller, "prod/chat", Expected("/v1/chat/completions", 1, 1), loop.time())
        request = Request()
        kept = weakref.ref(request)
        book.admit(account, request.proceed)
        answers = request.refused_by
        while not answers:
            await asyncio.sleep(0.01)
        assert answers == [None]
        del request
        await asyncio.sleep(0.05)
        gc.collect()
        assert kept() is None
        account.ends(loop.time(), completed=True)
        ledger.close()
        ledger.finish()

    event_loop.run(main())
