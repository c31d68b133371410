"""The TaskDriver for containers: starts, observes, stops and recovers the container of each task.
Containers of agents are in `agents`.
"""
