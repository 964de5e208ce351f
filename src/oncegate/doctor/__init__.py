"""Check a deployment: readers collect facts, and rules turn facts into findings. Rules do no I/O."""
