"""The Flask blueprint: its routes, the checks of every request, and the OpenAPI document."""
