"""Talks to a service by OpenAI's API: streamed completions, a conversation with commands, and measurements."""
