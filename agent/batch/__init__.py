"""Executions that a batch scheduler starts: submitted, watched, stopped and remembered by the
agent, with a keeper's promises.
"""
