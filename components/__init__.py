"""How desired state looks on a platform: pure renderers, the Pulumi components that register them, the providers."""
