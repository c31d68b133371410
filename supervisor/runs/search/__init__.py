"""Searches and lists of jobs."""
