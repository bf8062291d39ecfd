"""Shared by the end-to-end tests: the daemon as a process, tensors, checkpoint files, and errors as callers see them."""
