"""State of the core: the world, its configuration, and the transaction that changes it."""
