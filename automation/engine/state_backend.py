"""One state backend with all that working on it takes: URL, passphrase, work directories, CLI. For engine and commands.

`pulumi_engine` makes one for the loop's life, `automation.cli.state` one for each backend that a command names.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from automation.engine.cli_process import EngineFence
from automation.engine.key_keeper import KeyKeeper, ensure_passphrase, read_passphrase
from automation.engine.stack_cli import StackCli
from automation.engine.stack_states import StackStates
from automation.engine.state_files import StateFiles
from automation.engine.state_url import StateUrl
from automation.engine.workspace import Workspace
from components import naming


class StateBackend:
    """The parts that belong together. Close it."""

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
        make: bool = True,
        project: str = naming.PROJECT,
    ) -> None:
        """Prepare directories and the local key server; no CLI process is started, and no backend asked.

        `make` makes the directory of a file:// backend, as a loop at its first start needs it. `project` is Pulumi's; a
        static fleet may have another. Raises ValueError for a URL that makes no sense, PassphraseMissing for a file
        without a passphrase.
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
            # For stacks of Pulumi's own passphrase provider, as static fleets have them.
            environment={"PULUMI_CONFIG_PASSPHRASE": passphrase, **(environment or {})},
            grace_s=grace_s,
            fence=fence,
        )
        self.states = StackStates(self.cli, self.workspace, self.keeper, self.files)

    def close(self) -> None:
        """Stop the key server."""
        self.keeper.close()
