"""Parts of limits that the shards of a site lend each other."""
