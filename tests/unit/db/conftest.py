"""Lets the tests of this folder import what they share (`db_histories`, `db_stores`)."""
