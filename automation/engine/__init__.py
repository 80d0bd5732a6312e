"""The engine that applies rendered services: its interface, the implementation with Pulumi, and the batches."""
