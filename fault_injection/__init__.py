"""Everything that hurts a program or its disk, and everything that records what it did.

This package knows nothing of trainers and imports only the standard library, numpy and psutil.
"""
