"""Modules that jobs import. This folder, or a copy of it, is in their PYTHONPATH."""
