"""A real node for a local cluster: containerd, kubelet and kube-proxy, without a registry or a virtual machine.

The node runs in separate network, mount and process namespaces and in separate control groups, so that it changes
nothing on the machine and leaves nothing when it ends. Reading order: `layout`, `configuration`, `requirements`,
`images` and `image_set`, then the processes: `lifecycle` starts the `keeper` (outside the namespaces), which starts
`inside`. Callers use `node`.
"""
