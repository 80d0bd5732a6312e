"""One state backend with everything that is needed to use it: URL, passphrase, work directories, CLI.

`pulumi_engine` makes one for the life of the loop, `automation.cli.state` one for each backend that a command names.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from automation.engine.cli_process import EngineFence
from automation.engine.key_keeper import KeyKeeper, ensure_passphrase, read_passphrase
from automation.engine.stack_cli import StackCli
from automation.engine.stack_states import StackStates
from automation.engine.state_files import StateFiles
from automation.engine.state_table import StateTable
from automation.engine.state_url import StateUrl
from automation.engine.workspace import Workspace
from components import naming


class StateBackend:
    """The parts for one backend. The caller must close it."""

    def __init__(
        self,
        url: str,
        *,
        work_root: pathlib.Path,
        pulumi: pathlib.Path,
        passphrase: str | None = None,
        passphrase_file: pathlib.Path | None = None,
        old_passphrase: str | None = None,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 15.0,
        fence: EngineFence | None = None,
        starts_ahead: bool = False,
        make: bool = True,
        project: str = naming.PROJECT,
    ) -> None:
        """Prepare directories and start the local key server.

        No CLI process is started, and the backend gets no request.

        With `make`, the directory of a file:// backend is made, as for the first start of a loop. `project` is the
        Pulumi project; a static fleet may have another. Raises ValueError for an invalid URL, PassphraseMissing for a
        file without a passphrase.
        """
        self.url = StateUrl.of(url)
        self.files = StateFiles(self.url.path, project) if self.url.path is not None else None
        if self.files and make:
            self.files.create()
        self.workspace = Workspace(work_root, project)
        self.workspace.prepare()
        if passphrase_file is not None:
            passphrase = read_passphrase(passphrase_file)
        elif not passphrase:
            beside_state = self.files.root if self.files else self.workspace.root
            passphrase = ensure_passphrase(beside_state / "passphrase")
        self.keeper = KeyKeeper(passphrase, old_passphrase=old_passphrase)
        self.cli = StackCli(
            pulumi=pulumi,
            url=self.url,
            workspace=self.workspace,
            keeper=self.keeper,
            # For stacks with Pulumi's passphrase provider, as static fleets have.
            environment={"PULUMI_CONFIG_PASSPHRASE": passphrase, **(environment or {})},
            grace_s=grace_s,
            fence=fence,
            starts_ahead=starts_ahead,
        )
        self._table = StateTable.of_url(self.url, project)
        self.states = StackStates(self.cli, self.workspace, self.keeper, self.files, self._table)

    def close(self) -> None:
        """Stop the key server, end a CLI process that waits for a run, and close the connection to the table."""
        self.cli.close()
        if self._table is not None:
            self._table.close()
        self.keeper.close()
