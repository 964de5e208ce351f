"""Create AWS clients and classify their errors. Only code that calls AWS imports this package."""
