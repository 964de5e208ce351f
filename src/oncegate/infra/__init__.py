"""Create, change, show and delete the AWS resources (parts) of a deployment.

The wanted state of each part is data, which is compared with the state in AWS.
"""
