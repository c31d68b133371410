"""The agent's session with its supervisor and its keeper: pure state machine, connections,
heartbeat.
"""
