"""Requests that describe, check, plan and submit runs."""
