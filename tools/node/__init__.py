"""A real node for a local cluster: containerd, kubelet and kube-proxy, without a registry or a virtual machine.

The node has network, mounts, processes and control groups of its own, so that nothing of the machine is changed and
nothing stays when it ends. Reading order: `layout`, `configuration`, `requirements`, `images` and `image_set`, then
what runs: `lifecycle` starts the `keeper` (outside the namespaces), which starts `inside`; `node` is what callers use.
"""
