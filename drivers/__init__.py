"""Ways to start an agent and to launch tasks. A driver decides nothing; what it says is a report to
the core.
"""
