"""The first folder in the PYTHONPATH of jobs with post-mortem debugging."""
