"""Tables that the shards of a site share: parts of limits that they lend each other, and revoked API tokens."""
