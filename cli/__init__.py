"""The command line. `main` is the entry; every command lives in a module of its own that is loaded
only when it is used.
"""
