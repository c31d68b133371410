"""Core files of jobs: where the kernel puts them, how an executor collects them, and their frames."""
