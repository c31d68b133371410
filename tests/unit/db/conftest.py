"""No fixtures: `pythonpath` in pyproject.toml makes the helpers in `support` importable."""
