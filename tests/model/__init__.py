"""A bounded model check of the claim protocol: the shipped transition function in a small world with many faults."""
