"""Next steps for each reason of a service that does not serve. Called by `waiting` and `status`."""

from __future__ import annotations

from agent.contract import ProcessReason
from agent.sources.errors import Reason
from automation.places.place import ServiceState

_REMEDIES: dict[str, str] = {
    Reason.UNREACHABLE: "check the network; the download goes on by itself. A bundle carries models to machines "
    "without one (`herdsman bundle create`)",
    Reason.UNAUTHORIZED: "the model is gated or private, or does not exist: accept its licence on its page, and give "
    "a token as HF_TOKEN: on this machine in ~/.config/herdsman/local/credentials, in a cluster in the Secret that "
    "spec.sourceSecretRef of the Model names",
    Reason.NOT_FOUND: "the file was renamed or removed: `herdsman inspect SOURCE` checks an address, "
    "`herdsman deploy {name} --source SOURCE` sets it",
    Reason.CHECKSUM_MISMATCH: "the server has another file than the Model asks for: compare spec.sha256 with its page",
    Reason.NOT_GGUF: "llama.cpp serves GGUF files: name one, as hf://ORG/REPO/FILE.gguf",
    Reason.NO_SPACE: "free some space; `herdsman delete NAME --purge` removes a service with its files",
    Reason.REFUSED: "a server of your own network needs `herdsman local up --allowed-remote-host NAME`, in a cluster "
    "--allowed-remote-hosts of the loop or agent",
    ProcessReason.INSUFFICIENT_MEMORY: "`herdsman ps` shows who has the memory, `herdsman stop NAME` frees it; "
    "`herdsman deploy {name} --context 4096` needs less",
    ProcessReason.RUNTIME_MISSING: "install the engine: `herdsman tools install llama-server`, or "
    "`brew install llama.cpp`",
}


def remedy(service: ServiceState) -> str:
    """Return what to do, for a person; empty where nothing better than the logs is known."""
    return _REMEDIES.get(service.reason, "").format(name=service.name)
