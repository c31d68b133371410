"""Scheduling: queues of agents, placement of runs and gangs, rebalancing between hosts, and launch
requests.
"""
