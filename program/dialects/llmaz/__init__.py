"""The dialect of llmaz: OpenModel and BackendRuntime, and the Playgrounds and Services that use them."""
