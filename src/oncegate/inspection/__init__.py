"""What the store and the journal know about events: for commands and for the console. Nothing is claimed or run."""
