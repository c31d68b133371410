"""The machine as jobs see it: the login environment and ports in use."""
