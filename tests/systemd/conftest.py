"""Modules beside these tests are imported by their names."""
