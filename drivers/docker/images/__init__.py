"""Images on a host and the credentials of registries. Containers are made elsewhere."""
