"""Pure renderers of desired state, the Pulumi components that register rendered objects, and the Pulumi providers."""
