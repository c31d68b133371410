"""The AgentDriver for containers: starts, finds and removes agents' containers and the relay of
each host. Containers of single tasks are in `tasks`.
"""
