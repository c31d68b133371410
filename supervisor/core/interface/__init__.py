"""Interface of the core: the inputs that it decides, and the effects that it requests."""
