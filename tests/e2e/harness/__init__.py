"""What the end-to-end tests share: the daemon as a process, tensors on the wire, files on disk, errors as callers see them."""
