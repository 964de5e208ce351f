"""What Oncegate costs, as ratios to the least that this machine could do the same work for."""
