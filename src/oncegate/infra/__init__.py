"""The AWS resources (parts) of a deployment: described as data, compared with AWS, created, shown and deleted."""
