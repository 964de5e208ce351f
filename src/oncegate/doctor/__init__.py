"""Check a deployment. Readers collect facts about it, and rules turn the facts into findings. Rules do no I/O."""
