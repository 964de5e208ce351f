"""The AWS parts of a deployment: designed as data, planned against what is there, made, shown and taken away."""
