"""Which module runs where, and how many bytes that takes."""
