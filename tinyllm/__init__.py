"""The reference trainer, its checkpoint writer and reader, and the model release."""
