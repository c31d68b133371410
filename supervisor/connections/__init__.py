"""Connections of agents: the websocket listener, heartbeats, messages, and reports of drivers."""
