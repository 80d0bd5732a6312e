"""What should exist: desired state, dialects that parse into it, runtimes that turn it into commands."""
