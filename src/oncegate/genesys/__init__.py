"""The connection to Genesys Cloud: a client for its API, integrations and their plan, topics, permissions, and the
notification WebSocket.

The official SDK is not used: it takes seconds to import and 220 MB of memory. Oncegate needs about twenty operations.
"""
