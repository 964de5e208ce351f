"""AWS clients and the meaning of their errors. Imported only by code that calls AWS."""
