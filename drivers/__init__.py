"""Drivers: ways to start agents and to launch tasks. A driver decides nothing; it reports to the
core. The contracts are in `contracts`.
"""
