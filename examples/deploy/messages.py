"""/opt/oncegate/messages.py: the handler of the service."""

from oncegate import Event


def on_message(event: Event) -> None:
    """Replace this with your effect. Pass `str(event.key)` on as an idempotency key."""
