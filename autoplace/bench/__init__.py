"""Measures a placement and says whether the measurement is valid."""
