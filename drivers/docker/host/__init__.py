"""Access to a Docker host: client, deadlines, event stream, error mapping. Nothing here knows
agents or tasks.
"""
