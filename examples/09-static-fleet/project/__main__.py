"""What `pulumi up` runs in a repository of its own: Herdsman's program, on this project's config."""

import runpy

runpy.run_module("program", run_name="__main__")
