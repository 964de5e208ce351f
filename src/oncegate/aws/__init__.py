"""What all that asks AWS shares: its clients, and what its errors mean. Loaded only by those who do."""
