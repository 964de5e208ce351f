"""Analyze recorded traffic: which deliveries are copies, and which key, window and retention fit the traffic."""
