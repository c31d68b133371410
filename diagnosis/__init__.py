"""Diagnosis: one sentence to be written."""
