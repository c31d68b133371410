"""Notifications about changes of runs, by webhook or command. The event log is their only source."""
