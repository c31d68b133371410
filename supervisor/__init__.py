"""The supervisor: pure decisions in `core`, and around them the modules that store, act and talk to
clients, agents and drivers.
"""
