"""Executions in the keeper: start, process tracking, stop, exit info and recovery."""
