"""Copies of files between local folders and run directories: resumable, and checked by SHA-256."""
