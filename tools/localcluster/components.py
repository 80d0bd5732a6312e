"""The command line of each component of a local cluster. Pure; called by `cluster`.

All components listen on 127.0.0.1 with TLS. RBAC is on, and only the health and version paths answer without a
certificate.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from tools.localcluster.certificates import ADMIN, FRONT_PROXY, SERVICE_NETWORK, Pair
from tools.localcluster.layout import Layout

HEALTH_PATHS: dict[str, str] = {
    "kube-apiserver": "/readyz",
    "kube-controller-manager": "/healthz",
    "kube-scheduler": "/healthz",
}
_CLIENT_OF: dict[str, str] = {
    "kube-controller-manager": "controller-manager",
    "kube-scheduler": "scheduler",
}

# Anonymous clients may read only the health and version paths, and no path of the API.
AUTHENTICATION_CONFIGURATION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AuthenticationConfiguration",
    "anonymous": {
        "enabled": True,
        "conditions": [{"path": path} for path in ("/livez", "/readyz", "/healthz", "/version")],
    },
}


def arguments(component: str, layout: Layout, ports: Mapping[str, int]) -> list[str]:
    """Return the arguments of one component, without the program itself."""
    flags = {
        "etcd": _etcd,
        "kube-apiserver": _kube_apiserver,
        "kube-controller-manager": _kube_controller_manager,
        "kube-scheduler": _kube_scheduler,
    }[component](layout, ports)
    return [f"--{name}={value}" for name, value in flags.items()]


def kubeconfig(*, server: str, authority: str, pair: Pair, user: str = ADMIN) -> str:
    """Return a kubeconfig with all data included, as JSON, which every YAML parser reads."""

    def encoded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    return (
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "herdsman",
                        "cluster": {"server": server, "certificate-authority-data": encoded(authority)},
                    }
                ],
                "users": [
                    {
                        "name": user,
                        "user": {
                            "client-certificate-data": encoded(pair.certificate),
                            "client-key-data": encoded(pair.key),
                        },
                    }
                ],
                "contexts": [{"name": "herdsman", "context": {"cluster": "herdsman", "user": user}}],
                "current-context": "herdsman",
            },
            indent=2,
        )
        + "\n"
    )


def component_kubeconfig(component: str, layout: Layout) -> tuple[str, Path] | None:
    """Return the client name and the kubeconfig's path of a component that uses the API; None for the others."""
    client = _CLIENT_OF.get(component)
    return (client, layout.pki / f"{client}.kubeconfig") if client else None


def _etcd(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    client, peer = (f"https://127.0.0.1:{ports[name]}" for name in ("etcd", "etcd-peer"))
    pki = layout.pki
    return {
        "name": "local",
        "data-dir": str(layout.data),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"local={peer}",
        "cert-file": str(pki / "etcd.crt"),
        "key-file": str(pki / "etcd.key"),
        "client-cert-auth": "true",
        "trusted-ca-file": str(pki / "etcd-ca.crt"),
        "peer-cert-file": str(pki / "etcd.crt"),
        "peer-key-file": str(pki / "etcd.key"),
        "peer-client-cert-auth": "true",
        "peer-trusted-ca-file": str(pki / "etcd-ca.crt"),
        # A power failure may lose the last writes, in exchange for four times the speed.
        "unsafe-no-fsync": "true",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "log-level": "warn",
    }


def _kube_apiserver(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    pki = layout.pki
    return {
        "etcd-servers": f"https://127.0.0.1:{ports['etcd']}",
        "etcd-cafile": str(pki / "etcd-ca.crt"),
        "etcd-certfile": str(pki / "etcd-client.crt"),
        "etcd-keyfile": str(pki / "etcd-client.key"),
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "secure-port": str(ports["kube-apiserver"]),
        "tls-cert-file": str(pki / "server.crt"),
        "tls-private-key-file": str(pki / "server.key"),
        "client-ca-file": str(pki / "ca.crt"),
        "kubelet-client-certificate": str(pki / "kubelet-client.crt"),
        "kubelet-client-key": str(pki / "kubelet-client.key"),
        # There is no name server for the names of nodes.
        "kubelet-preferred-address-types": "InternalIP",
        "requestheader-client-ca-file": str(pki / "front-proxy-ca.crt"),
        "requestheader-allowed-names": FRONT_PROXY,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": str(pki / "front-proxy.crt"),
        "proxy-client-key-file": str(pki / "front-proxy.key"),
        "authentication-config": str(pki / "authentication.json"),
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": str(pki / "service-accounts.pub"),
        "service-account-signing-key-file": str(pki / "service-accounts.key"),
        "service-cluster-ip-range": SERVICE_NETWORK,
        "allow-privileged": "true",
        # An EndpointSlice refuses loopback addresses, so the Service `kubernetes` cannot have this address.
        "endpoint-reconciler-type": "none",
        "event-ttl": "15m",
        # This etcd cannot report the progress of a watch, which streamed lists need; newer clients (kwok) would retry
        # for ever. Image volumes are on by default from 1.35.
        "feature-gates": "ImageVolume=true,WatchList=false",
        "profiling": "false",
        **_audit(layout),
    }


def _audit(layout: Layout) -> dict[str, str]:
    """Return the flags for an audit log if there is an audit policy: see Layout.audit_policy."""
    if not layout.audit_policy.is_file():
        return {}
    return {"audit-policy-file": str(layout.audit_policy), "audit-log-path": str(layout.log("audit"))}


def _kube_controller_manager(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    pki = layout.pki
    return {
        **_controller(layout, "controller-manager", ports["kube-controller-manager"]),
        "use-service-account-credentials": "true",
        "root-ca-file": str(pki / "ca.crt"),
        "service-account-private-key-file": str(pki / "service-accounts.key"),
        "cluster-signing-cert-file": str(pki / "ca.crt"),
        "cluster-signing-key-file": str(pki / "ca.key"),
        "service-cluster-ip-range": SERVICE_NETWORK,
        # The default, 15 s, is for clusters with thousands of autoscalers.
        "horizontal-pod-autoscaler-sync-period": "2s",
        # The defaults, 20 and 30, protect an API server with many clients; this one has a single user.
        "kube-api-qps": "200",
        "kube-api-burst": "400",
    }


def _kube_scheduler(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    return _controller(layout, "scheduler", ports["kube-scheduler"])


def _controller(layout: Layout, client: str, port: int) -> dict[str, str]:
    path = str(layout.pki / f"{client}.kubeconfig")
    return {
        "kubeconfig": path,
        "authentication-kubeconfig": path,
        "authorization-kubeconfig": path,
        "bind-address": "127.0.0.1",
        "secure-port": str(port),
        "tls-cert-file": str(layout.pki / "server.crt"),
        "tls-private-key-file": str(layout.pki / "server.key"),
        "leader-elect": "false",
        "profiling": "false",
    }
