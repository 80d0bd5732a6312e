"""Makes the Homebrew formulas of a release: `herdsman.rb` and `herdsman-agent.rb`.

`python -m tools.homebrew.build FOLDER` writes them for the wheels of a folder. `formula` has the text, `wheels` finds
the files of dependencies.
"""
