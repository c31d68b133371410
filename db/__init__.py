"""What happened and what it adds up to: events, the fold, the store, the records, the index."""
