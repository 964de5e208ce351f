"""The doctor: facts that were read of a deployment, and rules that judge them. Reading and judging never mix."""
