"""Shells that are relayed: flow control and lifetime, for every driver."""
