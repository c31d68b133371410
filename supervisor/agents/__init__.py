"""The supervisor's requests to agents: app calls, file reads, log reads, and the search for orphan
agents.
"""
