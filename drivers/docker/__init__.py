"""Agents and tasks in containers, on a pool of Docker hosts."""
