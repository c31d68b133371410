"""Core files of jobs: `jobscribe core`."""
