"""Calls of app functions: the queue in the agent, the worker process, and its forks, one per call."""
