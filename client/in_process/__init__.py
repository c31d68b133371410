"""Clients whose supervisor, agent and jobs are in the same process and thread: `Client(in_process=True)`."""
