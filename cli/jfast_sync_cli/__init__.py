"""The command ``jfast-sync``: one file per group of commands; each parses, calls the library and prints."""
