"""Agents: their lifecycle, idle eviction, and the availability of their hosts."""
