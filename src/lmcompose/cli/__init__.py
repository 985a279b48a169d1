"""The `lmcompose` command: one file per verb, each of which parses, validates and calls the library."""
