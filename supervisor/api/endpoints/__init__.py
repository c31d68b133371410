"""The handlers of the HTTP API, one module for each topic."""
