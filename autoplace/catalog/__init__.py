"""Operators and engines: what each needs, allows and can express."""
