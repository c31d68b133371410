"""Make modules in this folder importable by name."""
