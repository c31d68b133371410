"""The command line. `main` is the entry point; each command has its own module, which is imported
on first use.
"""
