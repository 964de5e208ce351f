"""The web console: pages that show what the gate decided, and actions on events."""
