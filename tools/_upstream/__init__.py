"""Getting, patching and comparing the pinned upstream; the command line is tools/upstream.py."""
